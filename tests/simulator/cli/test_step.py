"""``python -m simulator step`` and ``validate``: their figures, and the steps that they refuse."""

import pytest

SHAPE_175B = "--layers 96 --hidden 12288 --heads 96 --vocab 51200 --sequence 2048"
PLAN_175B = "--tp 8 --pp 8 --chunks 3 --sequence-parallel --recompute selective"


def test_step_json_of_a_published_row(read):
    """arXiv:2205.05198, table 5: 13.75 s."""
    answer = read(f"step {SHAPE_175B} {PLAN_175B} --gpu a100-80gb --global-batch 64")
    assert answer["seconds"] == pytest.approx(13.75, rel=0.04)
    assert answer["seconds"] == pytest.approx(sum(answer["parts"].values()))
    assert answer["tflops_per_gpu"] == pytest.approx(312 * answer["hfu"])
    assert answer["mfu"] < answer["hfu"]


def test_step_table_names_the_parts(run):
    output = run("step --model llama-2-7b --gpu h100 --gpus 8 --dp 8 --zero 3 --global-batch 64").output
    assert "MFU" in output
    assert "data parallel" in output


def test_own_hardware_by_three_numbers(read):
    line = "step --model gpt2 --global-batch 8 --gpu"
    assert read(f"{line} 624e12,2039e9,300e9")["seconds"] < read(f"{line} 312e12,2039e9,300e9")["seconds"]


def test_flash_attention_is_the_default_where_its_time_has_come(read):
    line = "step --model gpt2 --global-batch 8 --gpu h100"
    assert read(line) == read(f"{line} --attention flash")
    assert read(line)["seconds"] < read(f"{line} --attention unfused")["seconds"]


def test_validate_prints_every_row_and_holds_its_targets(run, read):
    result = run("validate")
    assert result.exit_code == 0, result.output
    assert "145.6B" in result.output
    answer = read("validate")
    printed = result.output.splitlines()
    assert sum(line.endswith(("  fitted", "  held out")) for line in printed) == len(answer["rows"])
    for group, found in answer["summary"].items():
        assert group in printed
        assert found["all"]["rows"] == found["fitted"]["rows"] + found["held_out"]["rows"]
    assert answer["missed"] == []
    assert printed[-1] == "all targets are met"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            "--gpu a100-80gb --global-batch 64 --tp 8",
            "this plan needs 427.2 GB on a device and a100-80gb has 80 GB",
        ),
        ("--gpu tpu --global-batch 64", "gpu must be one of v100"),
        ("--gpu 1,2 --global-batch 64", "three numbers with commas, each finite and more than 0, not 1,2"),
        ("--gpu a100 --global-batch 64", "not a100"),
        ("--gpu h100 --global-batch 65 --dp 2", "must be a multiple of dp x micro-batch = 2, not 65"),
        ("--gpu h100 --global-batch 0", "global batch must be a multiple of dp x micro-batch = 1, not 0"),
        ("--gpu h100 --global-batch 64 --microbatches 8", "makes 64 microbatches, not 8"),
        ("--gpu h100 --global-batch 64 --dp 0", "dp must be a whole number of at least 1, not 0"),
        (
            "--gpu h100 --global-batch 64 --tp 8 --pp 8 --gpus 8",
            "must be the 8 devices there are, not 64",
        ),
        ("--gpu h100 --global-batch 64 --pp 8 --schedule 1f1b --chunks 3", "1f1b has 1 chunk a rank, not 3"),
    ],
)
def test_impossible_steps_end_with_one_sentence_and_exit_code_2(run, options, sentence):
    result = run(f"step --model gpt3-175b {options}")
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_a_schedule_by_name_changes_time_and_memory(run, read):
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
