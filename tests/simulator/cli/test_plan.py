"""``python -m simulator plan``, and ``--config`` for every command."""

import json

import pytest


def test_a_line_is_a_plan_that_step_takes(read, run):
    """As the command prints it: ``step --plan LINE`` prices it alike."""
    question = "--model llama-2-13b --gpu h100 --global-batch 64"
    answer = read(f"plan {question} --gpus 16 --top 4")
    for one in answer["best"]:
        assert read(f"step {question} --plan {one['line']}")["seconds"] == pytest.approx(one["seconds"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--model gpt2 --gpu h100 --global-batch 4", "Missing option '--gpus'"),
        ("--model llama-3-405b --gpu h100 --gpus 2 --global-batch 4", "the smallest needs"),
        ("--model resnet50 --gpu h100 --gpus 2 --global-batch 4", "only the parameters"),
        ("--model gpt2 --gpu a100-80gb --gpus 2 --global-batch 4 --precision fp8", "no 8-bit arithmetic"),
        ("--config nowhere.json --gpu h100 --gpus 2 --global-batch 4", "nowhere.json cannot be read"),
        ("--config a --model gpt2 --gpu h100 --gpus 2 --global-batch 4", "either --model or --config"),
    ],
)
def test_what_cannot_be_asked_ends_in_a_sentence(run, line, words):
    result = run(f"plan {line}")
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize("held", ["--overlap none", "--zero 3 --shard 2", "--attention unfused"])
def test_a_line_holds_all_that_was_fixed(read, held):
    question = "--model gpt2 --gpu h100 --global-batch 8"
    best = read(f"plan {question} --gpus 4 --top 1 {held}")["best"][0]
    assert read(f"step {question} --plan {best['line']}")["seconds"] == pytest.approx(best["seconds"])


def test_a_config_is_a_model_for_every_command(read, tmp_path):
    sizes = {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gpt2", **sizes}))
    line = "--gpu h100 --global-batch 8"
    for command in ("memory", "step"):
        one, other = (read(f"{command} {model} {line}") for model in (f"--config {file}", "--model gpt2"))
        assert one | {"model": None} == other | {"model": None}
        assert one["model"]["parameters"] == 124_439_808


def test_the_table_says_what_binds_and_what_helps(run):
    result = run("plan --model gpt2-xl --gpu a100-80gb --gpus 8 --global-batch 64 --top 3")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert "the fastest first" in lines[0]
    assert len([line for line in lines if "dp=" in line]) >= 3
    assert "Twice of one thing: arithmetic" in result.output
