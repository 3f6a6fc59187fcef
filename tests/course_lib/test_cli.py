"""The ``course`` command: what it prints, its exit codes, and that it leaves nothing running."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import fixture_checks
import nbformat
import psutil
import pytest
from click.testing import CliRunner
from graded_here import run_here
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from rich.console import Console

from course_lib import doctor
from course_lib.cli import main
from course_lib.grading import grade as grader
from course_lib.grading.results import Grade, Result
from course_lib.notebooks.build import build, read_notebook
from course_lib.notebooks.exercise import Exercise
from course_lib.notebooks.places import course_root
from course_lib.progress.points import chapters, load
from course_lib.progress.tables import grade_table

FOLDER = str(Path(fixture_checks.__file__).parent)
CHECK = f"import sys\nsys.path[:0] = [{FOLDER!r}]\nfrom fixture_checks import check"
ANSWER = "# EXERCISE 96.1\ndef half(x):\n    # BEGIN SOLUTION\n    return x / 2\n    # END SOLUTION"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one chapter with one exercise, graded in this process until ``monkeypatch.undo()``."""
    monkeypatch.setattr(grader, "run", run_here)
    output = new_output("stream", name="stdout", text="  ✓ 6\n  ✓ calls (target: at most 1)\n")
    tag = {"tags": ["nbval-check-output"]}
    cells = [
        new_code_cell(CHECK, execution_count=1),
        new_markdown_cell("### Exercise 96.1 · Halves (2 points, and 1 for the target)"),
        new_code_cell(ANSWER, execution_count=2),
        new_code_cell('check("96.1", half)', execution_count=3, outputs=[output], metadata=tag),
        new_markdown_cell("#### Hints for 96.1\n1. Two halves\n   make a whole.\n2. One line.\n3. `return`"),
        new_markdown_cell("#### Done\nIn production: `math.ldexp(x, -1)`."),
    ]
    (tmp_path / "solutions").mkdir()
    nbformat.write(new_notebook(cells=cells), tmp_path / "solutions" / "96_halves.ipynb")
    build(tmp_path / "solutions" / "96_halves.ipynb", tmp_path / "exercises")
    return tmp_path


def answer(course, body):
    path = course / "exercises" / "96_exercises_halves.ipynb"
    notebook = read_notebook(path)
    notebook.cells[2].source = f"# EXERCISE 96.1\ndef half(x):\n    {body}"
    nbformat.write(notebook, path)
    return path


def run(course, *arguments):
    return CliRunner().invoke(main, [*map(str, arguments), "--root", str(course)])


def test_json_is_as_promised_and_progress_is_remembered(course, monkeypatch):
    monkeypatch.undo()
    assert "not graded yet" in run(course, "progress").output
    result = run(course, "grade", "96", course / "solutions" / "96_halves.ipynb", "--json")
    kinds = {"right": {"earned": 2, "possible": 2}, "target": {"earned": 1, "possible": 1}}
    exercise = {"id": "96.1", "title": "Halves", "points": 3, "earned": 3, "status": "passed", "message": ""}
    wanted = {"chapter": "96_halves", "earned": 3, "possible": 3, "exercises": [exercise | kinds]}
    assert json.loads(result.stdout) == wanted | kinds
    assert (result.exit_code, result.stderr) == (0, "")
    assert chapters(course) == [("96_halves", 3, 3)]
    shown = run(course, "progress")
    assert "3 / 3" in shown.output
    assert shown.exit_code == 0


@pytest.mark.parametrize("module", ["course_lib", "course_lib.cli"])
def test_python_m_is_course(module):
    said = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True).stdout
    assert said == CliRunner().invoke(main, ["--help"], prog_name="course").output
    assert said.startswith("Usage: course ")


def test_help_imports_nothing_heavy():
    """So that it answers at once: torch, nbformat and pytest take seconds."""
    code = "import sys, course_lib.cli; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
    assert "click" in loaded
    assert not loaded & {"torch", "numpy", "nbformat", "rich", "psutil", "jupyter_core", "pytest"}


def test_help_fits_80_columns():
    context = click.Context(main, info_name="course")
    for name in ["", *main.list_commands(context)]:
        lines = CliRunner().invoke(main, [*name.split(), "--help"], prog_name="course").output.splitlines()
        assert all(len(line) <= 80 for line in lines), lines
        assert not any(line.endswith("...") for line in lines[1:]), lines
        flush = [line for line in lines if line and not line.startswith(" ")]
        assert all(line.startswith(("Usage:", "Options:", "Commands:")) for line in flush), flush


def test_long_lines_of_a_grade_go_on_below_their_text():
    words = "twenty words of what came out " * 5
    exercise = Exercise("96.1", words, 3, task=0, answer=1, check=2)
    result = Result(exercise, "failed", f"{words}\n  {words}", facts=(words,))
    console = Console(width=80, file=io.StringIO())
    console.print(grade_table(Grade("96_halves", [result])))
    lines = console.file.getvalue().splitlines()
    starts = ("96.1  ", "      ", "  ✓ ", "    ", "  ✗ ")
    assert all(line.startswith(starts) for line in lines[:-1])
    assert lines[-1].startswith("96_halves")
    assert len(lines) > 8


def test_the_table_names_what_is_wrong_and_why(course):
    answer(course, "return x * 2")
    result = run(course, "grade", "96")
    assert result.exit_code == 1
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0].startswith("96.1  Halves")
    assert lines[0].endswith("right 0 / 2   target 0 / 1")
    assert lines[1:3] == ["  ✗ 6: half is 12, expected 3", "    This is what comes out when it is doubled."]
    assert lines[3] == "    For a hint: course hint 96.1"
    assert lines[4].split() == ["96_halves", "right", "0", "/", "2", "target", "0", "/", "1"]
    assert lines[6].startswith("Exercise 96.1 · Halves (2 points, and 1 for the target), in exercises/96")
    assert load(course) == {"96_halves": {"96.1": 0}}


def test_a_slow_answer_keeps_its_points_for_being_right(course):
    answer(course, "return x / 2\nhalf.calls = 7")
    result = run(course, "grade", "96")
    assert result.exit_code == 1
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0].endswith("right 2 / 2   target 0 / 1")
    assert lines[1:3] == ["  ✓ 6", "  △ 6: calls: 7 (target: at most 1)"]
    assert load(course) == {"96_halves": {"96.1": 2}}
    assert "it is right, and misses its target" in run(course, "next").stdout
    found = json.loads(run(course, "grade", "96", "--json").stdout)
    assert (found["earned"], found["right"]["earned"], found["target"]["earned"]) == (2, 2, 0)
    assert found["exercises"][0]["status"] == "target missed"


def test_what_to_do_next_is_said_until_all_is_done(course):
    assert run(course, "next").stdout.startswith("Read notebooks/96_halves.ipynb, then write the answers in")
    assert "not written yet: x / 2" not in (shipped := run(course, "grade", "96").stdout)
    assert "  ○ not written yet: Halves" in shipped
    assert "A hint: course hint 96.1. Then: course grade 96" in run(course, "progress").stdout
    answer(course, "return x / 2")
    complete = run(course, "grade", "96").stdout.splitlines()
    assert "Chapter 96 is complete. The course's own answers: solutions/96_halves.ipynb" in complete
    assert "In production: `math.ldexp(x, -1)`." in complete
    assert run(course, "next").stdout == "All points of all chapters are yours.\n"


def test_a_hint_needs_neither_torch_nor_nbformat(course):
    # They take four seconds of processor time to import, for one sentence.
    say = "import sys; from course_lib.cli import main; main(standalone_mode=False); "
    heavy = "{'torch', 'numpy', 'nbformat', 'IPython', 'rich'}"
    code = f"{say} print(sorted({heavy} & sys.modules.keys()))"
    command = [sys.executable, "-c", code, "hint", "96.1", f"--root={course}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[0] == "96.1 · Halves: hint 1 of 3, the idea"
    assert said.splitlines()[-1] == "[]"


def test_hints_come_one_after_the_other(course):
    said = [run(course, "hint", "96.1").stdout.splitlines() for _ in range(4)]
    assert said[0] == [
        "96.1 · Halves: hint 1 of 3, the idea",
        "Two halves make a whole.",
        "Next: course hint 96.1 --level 2",
    ]
    assert [lines[1] for lines in said] == ["Two halves make a whole.", "One line.", "`return`", "`return`"]
    assert run(course, "hint", "96.1", "--level", 2).stdout.splitlines()[1] == "One line."
    refused = run(course, "hint", "96.7")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == "there is no exercise '96.7'; chapter 96 has 96.1\n"
    assert "Two halves" not in (course / "exercises" / "96_exercises_halves.ipynb").read_text()


def test_reset_puts_the_stub_back_and_keeps_a_copy(course):
    path = answer(course, "return x * 2")
    notebook = read_notebook(path)
    notebook.cells.append(new_markdown_cell("my own note"))
    nbformat.write(notebook, path)
    before = path.read_bytes()
    result = run(course, "reset", "96.1")
    assert result.exit_code == 0, result.output
    now = read_notebook(path)
    assert "NotImplementedError" in now.cells[2].source
    assert now.cells[-1].source == "my own note"
    (backup,) = (course / ".backups").iterdir()
    assert backup.read_bytes() == before
    assert str(backup.relative_to(course)) in result.stdout
    assert run(course, "reset", "96.1").stdout == "96.1 is as it was shipped already.\n"
    del now.cells[2]
    nbformat.write(now, path)
    assert run(course, "reset", "96.1").exit_code == 0
    assert "NotImplementedError" in read_notebook(path).cells[2].source


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not JSON {", "not JSON at line 1"),
        ("[1, 2]", "is not a notebook"),
        ('{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "is not a notebook"),
        (None, "there is no notebook"),
    ],
)
def test_what_is_not_a_notebook_is_said_in_one_sentence(course, text, reason):
    path = course / "mine.ipynb"
    if text is not None:
        path.write_text(text)
    result = run(course, "grade", "96", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1
    result = run(course, "grade", "96", path, "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert (found["chapter"], found["earned"], found["possible"]) == ("96_halves", 0, 3)
    assert found["exercises"][0]["status"] == "error"
    assert reason in found["exercises"][0]["message"]


def test_an_unknown_chapter_is_named_with_those_there_are(course):
    result = run(course, "grade", "7")
    assert result.exit_code == 2
    assert result.stderr == "there are no exercises for chapter '7'; chapters with exercises: 96\n"


def test_a_damaged_progress_file_is_no_obstacle(course):
    (course / ".progress.json").write_text("{")
    assert "not graded yet" in run(course, "progress").output
    assert run(course, "grade", "96").exit_code == 1
    assert load(course) == {"96_halves": {"96.1": 0}}
    kept = [".backups", ".progress.json", "exercises", "solutions"]  # the damaged file is kept
    assert sorted(path.name for path in course.iterdir()) == kept


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_it_leaves_no_process_and_no_file(course, how, code):
    answer(course, "while True: pass")
    temporary = course / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "course_lib", "grade", "96", f"--root={course}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(temporary)})
    deadline = time.monotonic() + 200
    while not any(
        "grading.runner" in " ".join(p.cmdline())
        for p in psutil.Process(process.pid).children(recursive=True)
    ):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(how)
    process.communicate(timeout=200)
    assert process.returncode == code
    assert not [p for p in started if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert list(temporary.iterdir()) == []


def test_plain_nbval_works_on_exercises(course):
    shutil.copy(course / "exercises" / "96_exercises_halves.ipynb", course / "shipped.ipynb")
    answer(course, "return x / 2").rename(course / "answered.ipynb")
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--nbval-lax"]
    command += ["shipped.ipynb", "answered.ipynb"]
    said = subprocess.run(command, cwd=course, capture_output=True, text=True).stdout
    found = set(re.findall(r"^(PASSED|FAILED|ERROR) (\w+)\.ipynb::", said, re.M))
    assert found == {("PASSED", "shipped"), ("FAILED", "shipped"), ("PASSED", "answered")}, said


def test_matrix_shows_every_cell_and_every_sentence():
    result = CliRunner().invoke(main, ["matrix"])
    assert result.exit_code == 0, result.output
    table, _, sentences = result.output.partition("\n\n")
    header, *rows = table.splitlines()
    assert header.split()[:3] == ["model", "tuning", "serial"]
    page = (course_root() / "docs" / "matrix.md").read_text(encoding="utf-8")
    assert len(rows) == page.count("\n| BERT") + page.count("\n| BART") + page.count("\n| LLaMA")
    numbers = {cell for row in rows for cell in row.split()[2:] if cell.isdigit()}
    assert numbers == {line.partition(".")[0] for line in sentences.strip().splitlines()}


@pytest.mark.parametrize("command", ["next", "progress", "grade 05", "hint 05.1", "lab", "update"])
def test_a_course_that_is_not_there_is_refused(command, tmp_path):
    result = CliRunner().invoke(main, [*command.split(), "--root", str(tmp_path / "nowhere")])
    assert result.exit_code == 2
    assert "'--root': Directory" in result.output
    assert "does not exist" in result.output


def test_doctor_looks_at_everything(monkeypatch):
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0, result.output
    told = " ".join(result.output.split())
    parts = ("Python", "PyTorch", "CPU cores", "memory", "GPU", "drawings", "Jupyter", "4 ranks summed to 6")
    assert not [what for what in parts if what not in told]

    def broken():
        raise ImportError("No module named 'jupyterlab'")

    monkeypatch.setattr(doctor, "_jupyter", broken)
    monkeypatch.setattr(doctor, "_ranks", doctor._python)
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert "No module named 'jupyterlab'" in result.output
    assert "make lab" in result.output
