"""What would do an answer's work is refused, by `course grade` and by the check in the notebook; nothing else is."""

import os
import time
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from course_lib.grading import allowed, checked
from course_lib.grading.allowed import refusal
from course_lib.grading.failed import CheckFailed

GOOD = "# EXERCISE 05.1\ndef assign_buckets(parameters, limit):\n    return []"
IMPORTS = {
    "torch": "torch",
    "checkpoint": "torch.utils.checkpoint.checkpoint",
    "deal": "course_lib.data_parallel.ddp.deal",
    "exchange": "course_lib.runtime.collectives.exchange",
}
NOT_ALLOWED = ("torch.optim", "torch.utils.checkpoint")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("torch.optim.AdamW([], lr=1)", "line 1 uses `torch.optim"),
        ("from torch.optim import AdamW", "`torch.optim.AdamW`"),
        ("from torch import optim as o\no.AdamW", "`torch.optim"),
        ("import torch.optim.adamw as a", "`torch.optim.adamw`"),
        ("o = torch.optim\no.AdamW", "line 1 uses `torch.optim`"),
        ("def f(x):\n    return checkpoint(print, x)", "line 2 uses `torch.utils.checkpoint.checkpoint`"),
        ("torch.optim.SGD\n%time print(3)", "`torch.optim"),
    ],
)
def test_what_the_task_does_not_allow_is_refused_under_every_name(source, what):
    status, said = refusal(source, IMPORTS, NOT_ALLOWED)
    assert status == "refused"
    assert what in said
    assert "the task does not allow `torch." in said


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("from course_lib.data_parallel.ddp import assign_buckets", "line 1 uses `course_lib.data_parallel"),
        ("import course_lib.by_hand.ddp as d", "line 1 uses `course_lib.by_hand.ddp`"),
        ("import course_lib.by_hand.ddp\ncourse_lib.by_hand.ddp.DDP", "line 2 uses `course_lib.by_hand"),
        ("from course_lib.runtime import collectives", "`course_lib.runtime.collectives`"),
        ("from course_lib.grading.material import material", "`course_lib.grading.material.material`"),
    ],
)
def test_the_courses_own_answer_is_none(source, what):
    status, said = refusal(source, IMPORTS, ())
    assert status == "refused"
    assert what in said
    assert "not with the course's own answer" in said


@pytest.mark.parametrize(
    "source",
    [
        "optim = 3\nx = optim",
        "def double(ctx, checkpoint): return 2 * checkpoint",
        "checkpoint = 3\nx = checkpoint",
        "def f(x):\n    for checkpoint in x:\n        checkpoint += 1",
        "def checkpoint(): pass\ncheckpoint()",
        "class checkpoint: pass\ncheckpoint()",
        "class A:\n    def optim(self): return self.checkpoint",
        "import torch.utils.data",
        "torch.optimum",
        "from course_lib.runtime import launch\nfrom course_lib.models.gpt import GPT\nimport os, simulator",
        "from course_lib.data_parallel.ddp import deal\ndeal(1)",
        "deal(exchange(2))\nimport course_lib\ncourse_lib.runtime.launch",
        "for _ in 'ab':\n    %time print(3)",
    ],
)
def test_everything_else_is_fine(source):
    assert refusal(source, IMPORTS, NOT_ALLOWED) is None


def test_where_everything_is_allowed_nothing_is_refused():
    assert refusal("torch.optim.AdamW", IMPORTS, ()) is None


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Counter(:\n    pass", "not Python: invalid syntax (line 1: `class Counter(:`)"),
        ("x = 1\n!ls", "not Python: invalid syntax (line 2: `!ls`)"),
        ("x = 1\0", "not Python: "),
    ],
)
def test_what_is_not_python_is_said_with_its_line(source, said):
    status, message = refusal(source, IMPORTS, ())
    assert status == "error"
    assert message.startswith(said)


@pytest.fixture
def ran(monkeypatch):
    """``ran(source)``: the notebook has run these cells, the last one last."""
    import IPython

    def run(*cells):
        shell = SimpleNamespace(history_manager=SimpleNamespace(input_hist_raw=["", *cells]))
        monkeypatch.setattr(IPython, "get_ipython", lambda: shell)

    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    return run


def test_the_check_says_what_course_grade_would_say(ran):
    ran(GOOD, f"{GOOD}\nfrom course_lib.data_parallel import ddp", "print(3)")
    with pytest.raises(CheckFailed) as refused:
        allowed.refuse_what_is_not_allowed("05.1")
    assert refused.value.lines[0].startswith(
        "`course grade` refuses this answer: line 4 uses `course_lib.data"
    )


def test_an_honest_answer_and_one_that_was_mended_are_checked(ran):
    ran(f"{GOOD}\nfrom course_lib.data_parallel import ddp", f"{GOOD}\nimport gc\n%time vars(assign_buckets)")
    allowed.refuse_what_is_not_allowed("05.1")
    allowed.refuse_what_is_not_allowed("05.2")  # was not run


def test_what_was_checked_and_not_saved_is_told(ran, tmp_path, monkeypatch):
    notebook = tmp_path / "05_exercises_ddp.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(GOOD)]), notebook)
    os.utime(notebook, (time.time() - 60,) * 2)
    monkeypatch.setattr(checked, "CHECKED", str(tmp_path / ".checked.json"))
    ran(f"{GOOD}  # better")
    monkeypatch.setenv("JPY_SESSION_NAME", str(notebook))
    allowed.refuse_what_is_not_allowed("05.1")
    (sentence,) = checked.unsaved(notebook, tmp_path)
    assert sentence.startswith("05.1: what you checked at ")
    assert "is not in the file" in sentence
    nbformat.write(new_notebook(cells=[new_code_cell(f"{GOOD}  # better")]), notebook)
    assert checked.unsaved(notebook, tmp_path) == []
