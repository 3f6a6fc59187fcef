"""The command line keeps its JSON contract, and refuses in one sentence with exit code 2."""

import json

import pytest
from click.testing import CliRunner

from simulator.cli import main

SHAPE_175B = "--layers 96 --hidden 12288 --heads 96 --vocab 51200 --sequence 2048"


def run(line):
    return CliRunner().invoke(main, line.split())


def read(line):
    result = run(line + " --json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_memory_json_has_every_rank_and_category():
    answer = read(
        f"memory {SHAPE_175B} --micro-batch 1 --tp 8 --sequence-parallel --pp 8 --chunks 3 --dp 1 --zero 0"
    )
    assert set(answer) == {"ranks", "peak_total"}
    assert len(answer["ranks"]) == 8
    categories = ["parameters", "gradients", "optimizer_states", "activations", "buffers"]
    for rank in answer["ranks"]:
        assert list(rank) == [*categories, "total"]
        assert rank["total"] == sum(rank[name] for name in categories)
    assert answer["peak_total"] == max(rank["total"] for rank in answer["ranks"])
    assert answer == read("memory --model gpt3-175b --tp 8 --sequence-parallel --pp 8 --chunks 3")


def test_memory_of_parameters_alone_is_model_states():
    """arXiv:1910.02054, figure 1."""
    (rank,) = read("memory --parameters 7.5e9 --dp 64 --zero 1")["ranks"]
    assert rank["total"] == pytest.approx(31.4e9, rel=0.006)
    assert rank["activations"] == rank["buffers"] == 0
    assert read("memory --model resnet50")["peak_total"] == 16 * 25_557_032


def test_memory_table_names_categories_and_unit():
    output = run("memory --model gpt2 --pp 2").output
    assert "optimizer states" in output
    assert "GB" in output
    assert len(output.splitlines()) == 7
    assert "MB" in run("memory --model resnet18").output


def test_layers_dealt_out_by_hand():
    even, uneven = (read(f"memory --model gpt2 --pp 4{more}") for more in ("", " --stage-layers 3,4,4,1"))
    assert uneven["ranks"][1]["parameters"] > even["ranks"][1]["parameters"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("memory --model gpt3-175b --tp 7", "tp must divide the 96 heads, not 7"),
        ("memory --model gpt3-175b --tp 0", "tp must be a whole number of at least 1, not 0"),
        ("memory --model gpt3-175b --pp 97", "97 pipeline stages need as many layers; the model has 96"),
        ("memory --model gpt3-175b --zero 5", "zero must be 0, 1, 2 or 3, not 5"),
        ("memory --model gpt5", "model must be one of gpt3-175b"),
        ("memory --model gpt2 --pp 2 --stage-layers 6,5", "2 numbers that add up to 12, not (6, 5)"),
        (
            "memory --model gpt2 --pp 2 --stage-layers half",
            "stage layers must be numbers with commas, not half",
        ),
        ("memory --layers 3", "a shape also needs --hidden, --heads, --vocab, --sequence"),
        (
            "memory --model gpt2 --pp 2 --stage-layers -1,13",
            "stage layers must be a whole number of at least 1",
        ),
        ("memory --parameters -1", "parameters must be a number more than 0, not -1"),
        ("memory --parameters inf", "parameters must be a number more than 0, not inf"),
        ("memory --parameters nan", "parameters must be a number more than 0, not nan"),
    ],
)
def test_bad_values_end_with_one_sentence_and_exit_code_2(line, sentence):
    result = run(line)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


PLAN_175B = "--tp 8 --pp 8 --chunks 3 --sequence-parallel --recompute selective"


def test_step_json_of_a_published_row():
    """arXiv:2205.05198, table 5: 13.75 s."""
    answer = read(f"step {SHAPE_175B} {PLAN_175B} --gpu a100-80gb --global-batch 64")
    assert set(answer) == {"seconds", "tflops_per_gpu", "mfu", "hfu", "parts"}
    assert answer["seconds"] == pytest.approx(13.75, rel=0.04)
    assert answer["seconds"] == pytest.approx(sum(answer["parts"].values()))
    assert answer["tflops_per_gpu"] == pytest.approx(312 * answer["hfu"])
    assert answer["mfu"] < answer["hfu"]


def test_step_table_names_the_parts():
    output = run("step --model llama-2-7b --gpu h100 --gpus 8 --dp 8 --zero 3 --global-batch 64").output
    assert "MFU" in output
    assert "data parallel" in output


def test_own_hardware_by_three_numbers():
    line = "step --model gpt2 --global-batch 8 --gpu"
    assert read(f"{line} 624e12,2039e9,300e9")["seconds"] < read(f"{line} 312e12,2039e9,300e9")["seconds"]


def test_flash_attention_is_the_default_where_its_time_has_come():
    line = "step --model gpt2 --global-batch 8 --gpu h100"
    assert read(line) == read(f"{line} --attention flash")
    assert read(line)["seconds"] < read(f"{line} --attention unfused")["seconds"]


def test_validate_prints_every_row_and_holds_its_targets():
    result = run("validate")
    assert result.exit_code == 0, result.output
    assert "145.6B" in result.output
    answer = read("validate")
    assert len(answer["rows"]) + len(answer["summary"]) == len(result.output.splitlines())
    assert answer["summary"]["time"]["mean"] <= 0.04


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            "--gpu a100-80gb --global-batch 64 --tp 8",
            "this plan needs 405.4 GB on a device and a100-80gb has 80 GB",
        ),
        ("--gpu tpu --global-batch 64", "gpu must be one of v100"),
        ("--gpu 1,2 --global-batch 64", "three numbers with commas, not 1,2"),
        ("--gpu a100 --global-batch 64", "not a100"),
        ("--gpu h100 --global-batch 65 --dp 2", "must be a multiple of dp x micro-batch = 2, not 65"),
        ("--gpu h100 --global-batch 0", "global batch must be a multiple of dp x micro-batch = 1, not 0"),
        ("--gpu h100 --global-batch 64 --microbatches 8", "makes 64 microbatches, not 8"),
        ("--gpu h100 --global-batch 64 --dp 0", "dp must be a whole number of at least 1, not 0"),
        (
            "--gpu h100 --global-batch 64 --tp 8 --pp 8 --gpus 8",
            "must be at most the 8 devices there are, not 64",
        ),
        ("--gpu h100 --global-batch 64 --pp 8 --schedule 1f1b --chunks 3", "1f1b has 1 chunk a rank, not 3"),
    ],
)
def test_impossible_steps_end_with_one_sentence_and_exit_code_2(options, sentence):
    result = run(f"step --model gpt3-175b {options}")
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_a_schedule_by_name_changes_time_and_memory():
    line = "--layers 16 --hidden 2048 --heads 16 --vocab 32000 --sequence 1024 --pp 4"
    one, gpipe = (read(f"memory {line} --microbatches 8 --schedule {name}") for name in ("1f1b", "gpipe"))
    assert one == read(f"memory {line} --microbatches 8")
    assert gpipe["ranks"][3]["activations"] == pytest.approx(8 * one["ranks"][3]["activations"])
    one, zero = (
        read(f"step {line} --gpu a100-80gb --global-batch 8 --schedule {name}") for name in ("1f1b", "zb-h1")
    )
    assert zero["parts"]["bubble"] < one["parts"]["bubble"]
    result = run(f"memory {line} --schedule magic")
    assert result.exit_code == 2
    assert "magic" in result.output
