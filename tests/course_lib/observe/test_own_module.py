"""``course simulate --module FILE.py:FUNCTION``: a module's memory, step and plans from the command line."""

import json

import pytest
from click.testing import CliRunner

from course_lib.cli import main
from course_lib.observe.own_module import traces_of

FILE = """
import torch
from torch import nn
from beside import WIDTH

def make():
    block = lambda: nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
    with torch.device("meta"):
        return nn.Sequential(*(block() for _ in range(4))), torch.zeros(2, WIDTH)

def cut(model, mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    parallelize_module(model, mesh, {"*.0": ColwiseParallel(), "*.2": RowwiseParallel()})

def tensor(): return (*make(), cut)
def four(): return (*make(), cut, 4)
def nothing(): return ()
def named(): return nn.Linear(3, 3), {"input": torch.zeros(5, 3)}
def fails(): raise KeyError("no weights")
def leaves(): raise SystemExit(3)
def alone(): return nn.Linear(3, 3)
def numbers(): return nn.Linear(3, 3), 4
def wide(): return nn.Linear(3, 3), torch.zeros(2, 4)
def two(): return nn.Linear(3, 3), (torch.zeros(2, 3), torch.zeros(2, 3))
number = 4
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "beside.py").write_text("WIDTH = 16")
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


@pytest.fixture
def run(file):
    def simulate(line, function="make"):
        return CliRunner().invoke(main, ["simulate", "--module", f"{file}:{function}", *line.split()])

    return simulate


def test_memory_step_and_plan(run):
    told = {}
    for line in ("memory --zero 3 --dp 2", "step --dp 2 --global-batch 8 --gpu h100"):
        result = run(f"{line} --json")
        assert result.exit_code == 0, result.output
        told[line.split()[0]] = json.loads(result.stdout)
    parameters = 4 * (16 * 64 * 2 + 64 + 16)
    for answer in told.values():
        assert answer["model"]["parameters"] == parameters
        assert (answer["plan"]["micro_batch"], answer["plan"]["precision"]) == (2, "fp32")  # as it was given
    assert told["memory"]["ranks"][0]["optimizer_states"] == 8 * parameters / 2
    assert told["step"]["plan"]["microbatches"] == 2
    # A plan's line, priced alone, takes as long as the plan says
    question = "--gpu h100 --global-batch 8"
    best = json.loads(run(f"plan {question} --gpus 4 --pp 2 --json").stdout)["best"]
    assert {one["plan"]["pp"] for one in best} == {2}
    for one in (best[0], best[-1]):
        again = json.loads(run(f"step {question} --plan {one['line']} --json").stdout)
        assert again["seconds"] == pytest.approx(one["seconds"])
    assert "the fastest first" in run(f"plan {question} --gpus 2").output


def test_it_is_cut_over_tensor_parallel_ranks(run):
    held = json.loads(run("memory --tp 2 --json", "tensor").stdout)["ranks"][0]
    own = 4 * (16 * 32 * 2 + 32 + 16)  # the second bias is on both ranks
    assert held["parameters"] == 4 * own
    found = run("plan --gpu h100 --gpus 4 --global-batch 8 --tp 2 --json", "tensor").stdout
    assert {one["plan"]["tp"] for one in json.loads(found)["best"]} == {2}
    assert "cannot be cut over tp 3" in run("memory --tp 3", "tensor").output
    assert "sequence_parallel must be False" in run("memory --tp 2 --sequence-parallel", "tensor").output
    refused = run("step --tp 2 --gpu h100 --global-batch 2 --export accelerate", "tensor").output
    assert "for accelerate tp must be 1, not 2" in refused


def test_in_16_bits(run):
    wide, narrow = (
        json.loads(run(f"memory --json{more}").stdout)["ranks"][0] for more in ("", " --precision mixed")
    )
    assert narrow["parameters"] == wide["parameters"] / 2
    assert narrow["optimizer_states"] == 1.5 * wide["optimizer_states"]  # with fp32 weights beside Adam's


def test_a_plan_in_another_frameworks_words(run):
    question = "plan --gpu h100 --gpus 4 --global-batch 8 --zero 3 --micro-batch 1 --recompute full --export"
    deepspeed = json.loads(run(f"{question} deepspeed").stdout)
    assert deepspeed["zero_optimization"]["stage"] == 3
    assert deepspeed["gradient_accumulation_steps"] == 2
    accelerate = run(f"{question} accelerate")
    assert "fsdp_activation_checkpointing: true" in accelerate.stdout
    assert "fsdp_transformer_layer_cls_to_wrap" in accelerate.stderr
    torchtitan = run(f"{question} torchtitan").stdout
    assert "--parallelism.data-parallel-shard-degree 4" in torchtitan
    assert "seq-len" not in torchtitan


def test_inputs_by_name(file):
    assert traces_of(f"{file}:named").samples == 5


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("nowhere", "mine.py has no function nowhere"),
        ("number", "mine.py has no function number"),
        ("fails", "mine.py:fails ends with KeyError: 'no weights'"),
        ("leaves", "mine.py:leaves ends with SystemExit: 3"),
        (
            "alone",
            "must return (model, inputs) or (model, inputs, cut): a module, a tensor, a tuple or a dict, and",
        ),
        ("alone", "not Linear"),
        ("numbers", "not (Linear, int)"),
        ("four", "not (Sequential, Tensor, function, int)"),
        ("nothing", "not ()"),
        ("a b", "a module must be FILE.py:FUNCTION, not "),
        ("wide", "mine.py:wide fails while it is traced: RuntimeError: "),
        ("two", "mine.py:two fails while it is traced: TypeError: "),
    ],
)
def test_a_wrong_function_ends_in_a_sentence(run, function, words):
    result = run("memory", function)
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.splitlines()) == 1


def test_a_file_that_is_missing_or_broken(file):
    file.write_text("1 +")
    for name, words in ((file, "ends with SyntaxError"), ("nowhere.py", "there is no file nowhere.py")):
        with pytest.raises(ValueError, match=words):
            traces_of(f"{name}:make")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("memory --layers 3", "--layers would not be used: the module has its own sizes"),
        ("memory --tp 2", "tp must be 1, not 2"),
        ("plan --gpu h100 --gpus 2 --global-batch 4 --tp 2", "tp must be 1, not 2: nothing says how"),
        ("memory --precision fp8", "precision must be mixed or bf16 or fp32, not fp8"),
        (
            "plan --gpu h100 --gpus 2 --global-batch 4 --export megatron",
            "for megatron the model must be a shape",
        ),
        (
            "plan --gpu h100 --gpus 2 --global-batch 4 --pp 2 --export deepspeed",
            "for deepspeed pp must be 1, not 2",
        ),
        ("step --gpu h100 --global-batch 3", "multiple of dp x micro-batch = 2"),
    ],
)
def test_what_a_module_cannot_be_asked(run, line, words):
    result = run(line)
    assert result.exit_code == 2
    assert words in result.output
