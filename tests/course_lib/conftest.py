"""A small chapter of three exercises, for the tests of the grader and of what builds exercises; what ranks import."""

from pathlib import Path
from types import SimpleNamespace

import fixture_checks
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_lib.runtime.fork_server import preload

# What the ranks of several files import: once, and not in each of hundreds.
preload("pytest")
preload("course_lib.data_parallel.fsdp")
preload("torch.distributed.optim")  # with torch's own DDP

SETUP = f"""import sys
sys.path[:0] = [{str(Path(fixture_checks.__file__).parent)!r}]
from fixture_checks import check"""

DOUBLE = '''# EXERCISE 98.1
def double(x):
    """Twice x."""
    # BEGIN SOLUTION: add x to itself
    return x + x
    # END SOLUTION'''

RUNNING = '''# EXERCISE 98.2
def running_sums(values):
    """The sums of the first one, two, … values."""
    total, sums = 0, []
    for value in values:
        # BEGIN SOLUTION
        total += value
        sums.append(total)
        # END SOLUTION
    return sums'''

COUNTER = '''# EXERCISE 98.3
class Counter:
    """Counts its calls."""

    def __init__(self):
        # BEGIN SOLUTION
        super().__init__()
        self.calls = 0
        # END SOLUTION

    def __call__(self):
        # BEGIN SOLUTION: count
        self.calls += 1
        return self.calls
        # END SOLUTION'''


def check_cell(number, call, facts):
    text = "".join(f"  ✓ {fact}\n" for fact in facts)
    return new_code_cell(
        call,
        metadata={"tags": ["nbval-check-output"]},
        outputs=[new_output("stream", name="stdout", text=text)],
        execution_count=1,
        id=f"check-{number}",
    )


def solution():
    """The chapter's solution notebook, as if executed."""
    cells = [
        new_markdown_cell("# 98 · A fixture", id="title"),
        new_code_cell(SETUP, execution_count=1, id="setup"),
        new_markdown_cell("### Exercise 98.1 · Twice (2 points)\nDouble it.", id="task-1"),
        new_code_cell(DOUBLE, execution_count=1, id="answer-1"),
        check_cell(1, 'check("98.1", double)', ["3", "-1"]),
        new_markdown_cell("### Exercise 98.2 · Running sums (1 point)\nAdd them up.", id="task-2"),
        new_code_cell(RUNNING, execution_count=1, id="answer-2"),
        new_code_cell("running_sums([1, 2])", execution_count=1, id="demo"),
        check_cell(2, 'check("98.2", running_sums)', ["no values", "four values"]),
        new_markdown_cell("### Exercise 98.3 · A counter (4 points)\nCount.", id="task-3"),
        new_code_cell(COUNTER, execution_count=1, id="answer-3"),
        check_cell(3, 'check("98.3", Counter)', ["first call", "second call"]),
    ]
    return new_notebook(cells=cells, metadata={"language_info": {"name": "python", "version": "3.11.7"}})


def find(notebook, cell_id):
    """The notebook's cell of this id."""
    return next(cell for cell in notebook.cells if cell.id == cell_id)


@pytest.fixture
def chapter(tmp_path):
    """The chapter's ``solution`` and folders that hold it: ``solutions/98_fixture.ipynb``, ``exercises/``."""
    path = tmp_path / "solutions" / "98_fixture.ipynb"
    path.parent.mkdir()
    nbformat.write(solution(), path)
    return SimpleNamespace(
        solution=solution,
        find=find,
        path=path,
        exercises=tmp_path / "exercises",
        exercise=tmp_path / "exercises" / "98_exercises_fixture.ipynb",
    )
