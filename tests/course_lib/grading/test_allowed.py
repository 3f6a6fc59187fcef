"""The check in a notebook refuses what `course grade` refuses, and remembers what it has judged."""

import os
import time
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from course_lib.grading import allowed, checked
from course_lib.grading.failed import CheckFailed

GOOD = "# EXERCISE 05.1\ndef assign_buckets(parameters, limit):\n    return []"


@pytest.fixture
def ran(monkeypatch):
    """``ran(source)``: the notebook has run these cells, the last one last."""
    import IPython

    def run(*cells):
        shell = SimpleNamespace(history_manager=SimpleNamespace(input_hist_raw=["", *cells]))
        monkeypatch.setattr(IPython, "get_ipython", lambda: shell)

    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    return run


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import os", "line 4 imports `os`"),
        ("exec('1')", "line 4 uses `exec`"),
        ("from course_lib.data_parallel import ddp", "line 4 imports `course_lib.data_parallel.ddp`"),
        ("!ls", "the notebook command `!ls`"),
    ],
)
def test_the_check_says_what_course_grade_would_say(ran, line, said):
    ran(GOOD, f"{GOOD}\n{line}", "print(3)")
    with pytest.raises(CheckFailed) as refused:
        allowed.refuse_what_is_not_allowed("05.1")
    assert refused.value.lines[0].startswith("`course grade` refuses this answer: ")
    assert said in refused.value.lines[0]


def test_an_honest_answer_and_one_that_was_mended_are_checked(ran):
    ran(f"{GOOD}\nimport os", f"{GOOD}\nimport gc\n%time vars(assign_buckets)")
    allowed.refuse_what_is_not_allowed("05.1")
    allowed.refuse_what_is_not_allowed("05.2")  # was not run


def test_what_was_checked_and_not_saved_is_told(ran, tmp_path, monkeypatch):
    notebook = tmp_path / "05_exercises_ddp.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(GOOD)]), notebook)
    os.utime(notebook, (time.time() - 60,) * 2)
    monkeypatch.setattr(allowed, "_root", lambda: tmp_path)
    ran(f"{GOOD}  # better")
    monkeypatch.setenv("JPY_SESSION_NAME", str(notebook))
    allowed.refuse_what_is_not_allowed("05.1")
    (sentence,) = checked.unsaved(notebook, tmp_path)
    assert sentence.startswith("05.1: what you checked at ")
    assert "is not in the file" in sentence
    nbformat.write(new_notebook(cells=[new_code_cell(f"{GOOD}  # better")]), notebook)
    assert checked.unsaved(notebook, tmp_path) == []
