"""Exercises follow from solutions, and what a learner wrote outlives a new version of the course."""

import copy
import re
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from course_lib.notebooks.build import (
    build,
    drift,
    link_to_chapter,
    make_exercise,
    read_notebook,
    write_notebook,
)
from course_lib.notebooks.exercise import read_exercises, stub


def test_exercises_are_read_with_title_and_points(chapter):
    found = read_exercises(chapter.solution(), "98_fixture")
    assert [(e.id, e.title, e.points) for e in found] == [
        ("98.1", "Twice", 2),
        ("98.2", "Running sums", 1),
        ("98.3", "A counter", 4),
    ]
    assert (found[1].task, found[1].answer, found[1].check) == (5, 6, 8)


def test_marked_lines_become_a_raise_and_keep_their_indentation(chapter):
    notebook = make_exercise(chapter.solution(), "98_fixture")
    assert chapter.find(notebook, "answer-2").source.splitlines()[3:] == [
        "    total, sums = 0, []",
        "    for value in values:",
        '        raise NotImplementedError("98.2: Running sums")',
        "    return sums",
    ]
    lines = chapter.find(notebook, "answer-3").source.splitlines()
    assert lines[-4:] == [
        '        raise NotImplementedError("98.3: A counter")',
        "",
        "    def __call__(self):",
        '        raise NotImplementedError("98.3: count")',
    ]


def test_nothing_in_an_exercise_tells_a_result(chapter):
    solved = chapter.solution()
    chapter.find(solved, "answer-1").outputs = [nbformat.v4.new_output("stream", text="6")]
    notebook = make_exercise(solved, "98_fixture")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all((cell.outputs, cell.execution_count) == ([], None) for cell in cells)
    assert "version" not in notebook.metadata.language_info
    assert "SOLUTION" not in nbformat.writes(notebook)


def test_nbval_passes_an_exercise_that_is_solved_and_no_other(chapter):
    """Anywhere: the exercise holds no output to compare with, so only an exception fails a cell."""
    build(chapter.path, chapter.exercises)
    nbval = ["-m", "pytest", "-p", "no:cacheprovider", "--nbval-lax", "--nbval-current-env", "--color=no"]

    def failed():
        run = [sys.executable, *nbval, "-rf", chapter.exercise]
        said = subprocess.run(run, cwd=chapter.exercises, capture_output=True, text=True).stdout
        assert "not written yet: add x to itself" in said or "passed" in said
        return re.findall(r"^FAILED .*Cell (\d+)", said, re.MULTILINE)

    assert len(failed()) >= 3
    notebook = read_notebook(chapter.exercise)
    for name in ("answer-1", "answer-2", "answer-3"):
        chapter.find(notebook, name).source = chapter.find(chapter.solution(), name).source
    write_notebook(notebook, chapter.exercise)
    assert failed() == []


def test_the_link_to_the_chapter_has_its_title():
    title = nbformat.v4.new_markdown_cell("# 98 · A fixture: exercises\n\nThree exercises.")
    notebook = nbformat.v4.new_notebook(cells=[title])
    link_to_chapter(notebook, "98_fixture")
    words = title.source.splitlines()[-1]
    assert words == "The chapter: [98 · A fixture](../notebooks/98_fixture.ipynb)."


def test_building_twice_gives_the_same_bytes(chapter):
    assert build(chapter.path, chapter.exercises) == []
    first = chapter.exercise.read_bytes()
    assert build(chapter.path, chapter.exercises) == []
    assert chapter.exercise.read_bytes() == first
    assert [path.name for path in chapter.exercises.iterdir()] == ["98_exercises_fixture.ipynb"]


def learner_works(chapter):
    """Fill in 98.1, add a cell behind it, edit a check and a course cell."""
    build(chapter.path, chapter.exercises)
    mine = read_notebook(chapter.exercise)
    chapter.find(mine, "answer-1").source = "# EXERCISE 98.1\ndef double(x):\n    return 2 * x"
    chapter.find(mine, "check-1").source += "  # I was here: check("
    place = mine.cells.index(chapter.find(mine, "answer-1"))
    mine.cells.insert(place + 1, new_code_cell("double(21)", id="mine"))
    mine.cells.append(new_markdown_cell("a note to myself", id="title"[:-1]))
    write_notebook(mine, chapter.exercise)


def new_version(chapter):
    """A later version of the course: another task for 98.1, an answer and a check reworded."""
    solved = read_notebook(chapter.path)
    chapter.find(solved, "task-1").source += " Quickly."
    answer = chapter.find(solved, "answer-2")
    answer.source = answer.source.replace("The sums", "All sums")
    chapter.find(solved, "answer-1").source = chapter.find(solved, "answer-1").source.replace(
        "x + x", "x * 2"
    )
    write_notebook(solved, chapter.path)


def test_an_update_keeps_answers_and_own_cells(chapter):
    learner_works(chapter)
    new_version(chapter)
    assert build(chapter.path, chapter.exercises) == [
        "answer 98.1",
        "a cell of your own",
        "a cell of your own",
    ]
    merged = read_notebook(chapter.exercise)
    place = merged.cells.index(chapter.find(merged, "answer-1"))
    assert merged.cells[place].source.endswith("return 2 * x")
    assert merged.cells[place + 1].source == "double(21)"
    assert merged.cells[-1].source == "a note to myself"
    assert chapter.find(merged, "task-1").source.endswith("Quickly.")
    assert "All sums" in chapter.find(merged, "answer-2").source
    assert chapter.find(merged, "check-1").source == 'check("98.1", double)'
    before = chapter.exercise.read_bytes()
    build(chapter.path, chapter.exercises)
    assert chapter.exercise.read_bytes() == before


def test_answers_are_kept_where_a_tool_dropped_ids_and_metadata(chapter):
    learner_works(chapter)
    stripped = read_notebook(chapter.exercise)
    stripped.metadata = {}
    for index, cell in enumerate(stripped.cells):
        cell.id = f"other-{index}"
    write_notebook(stripped, chapter.exercise)
    assert "answer 98.1" in build(chapter.path, chapter.exercises)
    assert "return 2 * x" in chapter.exercise.read_text()


def test_a_notebook_that_cannot_be_read_is_left_alone(chapter):
    chapter.exercises.mkdir()
    chapter.exercise.write_text("my answers <<<<<<< HEAD")
    with pytest.raises(ValueError, match="is not a notebook: not JSON at line 1"):
        build(chapter.path, chapter.exercises)
    assert chapter.exercise.read_text() == "my answers <<<<<<< HEAD"


def test_drift_is_found_and_a_learner_is_no_drift(chapter):
    assert "there is no exercise" in drift(chapter.path, chapter.exercises)
    build(chapter.path, chapter.exercises)
    assert drift(chapter.path, chapter.exercises) is None
    untouched = read_notebook(chapter.exercise)
    edited = copy.deepcopy(untouched)
    chapter.find(edited, "check-1").outputs = chapter.find(chapter.solution(), "check-1").outputs
    write_notebook(edited, chapter.exercise)
    assert "not what its solution gives" in drift(chapter.path, chapter.exercises)
    learner_works(chapter)
    assert drift(chapter.path, chapter.exercises) is None
    new_version(chapter)
    assert "not what its solution gives" in drift(chapter.path, chapter.exercises)


def without(cell_id):
    def change(notebook):
        notebook.cells = [cell for cell in notebook.cells if cell.id != cell_id]

    return change


def with_source(cell_id, old, new):
    def change(notebook):
        cell = next(cell for cell in notebook.cells if cell.id == cell_id)
        cell.source = cell.source.replace(old, new)

    return change


def untagged(notebook):
    next(cell for cell in notebook.cells if cell.id == "check-1").metadata.tags = []


def swapped(notebook):
    notebook.cells[3], notebook.cells[4] = notebook.cells[4], notebook.cells[3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("task-1"), "exercise 98.1 needs its task"),
        (without("check-2"), "exercise 98.2 needs its task"),
        (swapped, "in this order"),
        (untagged, "check 98.1 lacks the tag `nbval-check-output`"),
        (with_source("answer-1", "# END SOLUTION", "#"), "answer 98.1 has no `# BEGIN SOLUTION`"),
        (with_source("answer-2", "98.2", "98.1"), "2 cells are the answer of exercise 98.1"),
        (with_source("task-1", "2 points", "0 points"), "exercise 98.1 needs its task"),
    ],
)
def test_a_solution_that_departs_from_the_form_is_refused(chapter, change, message):
    notebook = chapter.solution()
    change(notebook)
    with pytest.raises(ValueError, match=message):
        read_exercises(notebook, "98_fixture")


def test_an_exercise_of_another_chapter_is_refused(chapter):
    with pytest.raises(ValueError, match=r"98\.1 belongs to chapter 98"):
        read_exercises(chapter.solution(), "05_ddp")


def test_marks_must_hold_whole_statements(chapter):
    notebook = chapter.solution()
    exercise = read_exercises(notebook, "98_fixture")[0]
    broken = "# EXERCISE 98.1\nx = (\n# BEGIN SOLUTION\n1\n# END SOLUTION\n)"
    with pytest.raises(ValueError, match="mark whole statements"):
        stub(broken, exercise)
