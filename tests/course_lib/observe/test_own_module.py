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
        return nn.Sequential(*(block() for _ in range(4))), torch.zeros(2, WIDTH, device="cpu")

def named(): return nn.Linear(3, 3), {"input": torch.zeros(5, 3)}
def fails(): raise KeyError("no weights")
def leaves(): raise SystemExit(3)
def alone(): return nn.Linear(3, 3)
def numbers(): return nn.Linear(3, 3), 4
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


def test_inputs_by_name(file):
    assert traces_of(f"{file}:named").samples == 5


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("nowhere", "mine.py has no function nowhere"),
        ("number", "mine.py has no function number"),
        ("fails", "mine.py:fails ends with KeyError: 'no weights'"),
        ("leaves", "mine.py:leaves ends with SystemExit: 3"),
        ("alone", "must return (model, inputs): a module, and a tensor, a tuple or a dict; not Linear"),
        ("numbers", "not (Linear, int)"),
        ("a b", "a module must be FILE.py:FUNCTION, not "),
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
        ("plan --gpu h100 --gpus 2 --global-batch 4 --tp 2", "tp must be 1, not 2"),
        (
            "plan --gpu h100 --gpus 2 --global-batch 4 --export deepspeed",
            "for deepspeed the model must be a shape",
        ),
        ("step --gpu h100 --global-batch 3", "multiple of dp x micro-batch = 2"),
    ],
)
def test_what_a_module_cannot_be_asked(run, line, words):
    result = run(line)
    assert result.exit_code == 2
    assert words in result.output
