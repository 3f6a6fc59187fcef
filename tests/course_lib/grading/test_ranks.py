"""Answers on ranks are watched as they are in the notebook: what they patch there is found out."""

import builtins
import math
import os
import sys

import psutil
import pytest
import torch
import torch.distributed as dist
from fixture_checks import check, exercise

from course_lib.grading import guard
from course_lib.grading.guard import Tampered
from course_lib.grading.ranks import launch
from course_lib.observe.ledgers.messages import record_messages


def honest(x):
    t = torch.full((1,), float(dist.get_rank() * x))
    dist.all_reduce(t)
    return t.item()


def patches_a_comparison(_):
    torch.equal = lambda *_: True


def patches_the_records(record):
    messages = sys.modules[record.__module__]
    messages.record_messages = None


def test_results_come_in_rank_order():
    assert launch(honest, 2, args=(3,), backend="gloo", timeout=60) == [3.0, 3.0]


@pytest.mark.parametrize(
    ("answer", "name"),
    [(patches_a_comparison, "`equal` of torch"), (patches_the_records, "`record_messages` of course_lib")],
)
def test_what_an_answer_patches_on_a_rank_is_named(answer, name):
    with pytest.raises(Tampered, match=f"changes {name}"):
        launch(answer, 2, args=(record_messages,), backend="gloo", timeout=60)


def pid():
    return os.getpid()


def test_a_check_keeps_its_ranks_to_its_end():
    seen = []

    def observe(answer, case):
        seen.append(launch(pid, 2))
        assert all(map(psutil.pid_exists, seen[0]))
        return {"result": ""}

    exercise("97.1", None, {"first": 1, "second": 2}, "ranks", observe=observe)
    check("97.1", None)
    assert len(seen) == 4
    assert all(pids == seen[0] for pids in seen)
    assert not any(map(psutil.pid_exists, seen[0]))
    assert launch(pid, 2) != seen[0]


def another(*_, **__):
    return True


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (torch, "equal", another),
        (builtins, "len", another),
        (math, "isclose", another),
        (torch.Tensor, "add_", another),
        (torch.nn.functional.softmax, "__defaults__", (0, 0, None)),
        (torch.testing.assert_close, "__code__", another.__code__),
        (torch.Tensor.backward, "__code__", another.__code__),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:20],
)
def test_marks_differ_wherever_the_comparison_finds_a_change(owner, name, value, monkeypatch):
    definitions, marks = guard.definitions(), guard.marks()
    assert guard.marks() == marks
    monkeypatch.setattr(owner, name, value)
    with pytest.raises(Tampered):
        guard.compare(definitions, guard.definitions())
    changed = guard.marks() != marks
    monkeypatch.undo()
    assert changed


def test_a_function_that_is_taken_away_changes_the_marks(monkeypatch):
    marks = guard.marks()
    monkeypatch.delattr(math, "isclose")
    assert guard.marks() != marks
