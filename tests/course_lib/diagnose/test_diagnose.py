"""Steps of every style are judged as the table says. The whole table is a benchmark; here are rows of each kind."""

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from seeded_steps import data_parallel, tokens
from seeded_steps import tensor_parallel as tp
from seeded_steps.model import GPT, adam, batch, loss
from seeded_steps.table import FAULTS, RIGHT, said, seeded

from course_lib.cli import main
from course_lib.diagnose.run import diagnose

CHEAP_RIGHT = {
    "all-reduce by hand, two steps",
    "FSDP2, clipped",
    "ZeRO-1 by hand, owners",
    "Megatron's f and g",
}
CHEAP_RIGHT |= {"data x tensor parallel", "pipeline, send and receive"}
CHEAP = {
    "by_hand: seed",
    "by_hand: same part",
    "tokens_count: mean of means",
    "ddp: clipped before",
    "fsdp: local norm",
    "zero_owner: not sent",
    "megatron: no f",
    "megatron: no g",
    "megatron: bias",
    "sequence: no norm sum",
    "experts: capacity",
    "hangs: one left out",
}


@pytest.mark.parametrize("row", [r for r in RIGHT if r.name in CHEAP_RIGHT], ids=lambda r: r.name)
def test_a_right_step_is_not_accused(row):
    result = diagnose(row.step, row.ranks)
    assert result.sentences == ()
    assert all(result.compared.values()), "a step of which nothing was compared is not judged"


@pytest.mark.parametrize("row", [f for f in FAULTS if f.name in CHEAP], ids=lambda f: f.name)
def test_a_fault_is_named(row):
    assert said(row, diagnose(seeded(row.step, row.fault), row.ranks)) == ""


def test_the_axis_of_a_mesh_is_named():
    result = diagnose(seeded(tp.dp_tp, "wrong group"), mesh={"dp": 2, "tp": 2})
    assert "the values of axis dp average to one device's" in result.sentences[0]


def test_a_factor_is_given_exactly():
    (cause,) = diagnose(seeded(data_parallel.by_hand, "twice"), 2).causes
    assert cause.placement.factors[0] == pytest.approx(1 / 2, rel=1e-12)


def test_lower_precision_is_said():
    def in_float32(rank, ranks):
        model, (x, y) = GPT(1).float(), batch()
        loss(model(x.chunk(ranks)[rank]), y.chunk(ranks)[rank]).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= ranks
        adam(model.parameters()).step()
        return model

    result = diagnose(in_float32, 2)
    assert result.sentences == ()
    assert "lower precision" in result.summary()


def test_models_without_a_common_name_are_refused():
    def renamed(rank, ranks):
        layer = torch.nn.Linear(2, 2)
        model = torch.nn.ModuleDict({f"of_{ranks}": layer})
        layer(torch.ones(1, 2)).sum().backward()
        return model

    with pytest.raises(ValueError, match="share no name of a parameter"):
        diagnose(renamed, 2)


STEP = """
import torch

def step(rank, ranks):
    model = torch.nn.Linear(4, 4)
    x = torch.randn(8, 4).chunk(ranks)[rank]
    model(x).square().mean().backward()
    for p in model.parameters():
        torch.distributed.all_reduce(p.grad)
        p.grad /= {divisor}
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return model
"""


def test_the_command(tmp_path):
    file = tmp_path / "my_step.py"
    file.write_text(STEP.format(divisor="ranks"))
    right = CliRunner().invoke(main, ["diagnose", str(file), "--ranks", "2"])
    assert right.exit_code == 0, right.output
    assert "2 of 2 gradients" in right.output
    file.write_text(STEP.format(divisor="1"))
    wrong = CliRunner().invoke(main, ["diagnose", str(file), "--mesh", "dp=2"])
    assert wrong.exit_code == 1
    assert "`weight.grad` and 1 more are 2 times one device's" in wrong.output


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("x = 1", [], "must define a function step(rank, ranks)"),
        ("def step(rank, ranks): return 3", [], "must return its model, an nn.Module, not int"),
        ("def step(rank, ranks): return 3", ["--ranks", "1"], "ranks must be 2 or more, not 1"),
        ("def step(rank, ranks): return 3", ["--mesh", "dp"], "such as dp=2,tp=2, not 'dp'"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, text, options, sentence):
    file = tmp_path / "my_step.py"
    file.write_text(text)
    result = CliRunner().invoke(main, ["diagnose", str(file), *options])
    assert result.exit_code == 2
    assert sentence in result.output
    assert len(result.output.splitlines()) == 1


def test_a_step_that_fails_on_one_device_shows_where(tmp_path):
    file = tmp_path / "my_step.py"
    file.write_text("def step(rank, ranks):\n    raise ValueError('no data')\n")
    result = CliRunner().invoke(main, ["diagnose", str(file)])
    assert result.exit_code == 1
    assert "the step fails on one rank" in result.output
    assert "line 2, in step" in result.output


def test_every_row_has_a_thread_and_a_name_of_its_own():
    names = [row.name for row in [*RIGHT, *FAULTS]]
    assert len(set(names)) == len(names)
    assert all(row.thread.startswith("https://github.com/") for row in FAULTS)
    assert {r.name for r in RIGHT} >= CHEAP_RIGHT
    assert {f.name for f in FAULTS} >= CHEAP
    assert tokens.hangs in {f.step for f in FAULTS}
