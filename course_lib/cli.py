"""``course doctor | grade | progress``: look at the machine, grade a chapter, see how far you are."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from course_lib.grading.build import exercise_name
from course_lib.grading.grade import (
    CELL_TIMEOUT,
    TIME_LIMIT,
    Grade,
    OnProgress,
    chapter_path,
    failed_grade,
    grade,
)
from course_lib.grading.progress import chapters, course_root, remember

BAR = 20  # characters


@click.group()
def main() -> None:
    """Training large models, by hand."""


@main.command("grade")
@click.argument("number", metavar="NN")
@click.argument("notebook", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON, and no progress")
@click.option(
    "--cell-timeout", default=CELL_TIMEOUT, show_default=True, help="seconds for an answer or a check"
)
@click.option("--time-limit", default=TIME_LIMIT, show_default=True, help="seconds for the chapter")
@click.option("--root", type=click.Path(path_type=Path), default=course_root, help="the course's folder")
def grade_command(
    number: str, notebook: Path | None, as_json: bool, cell_timeout: float, time_limit: float, root: Path
) -> None:
    """Grade the exercises of chapter NN: exercises/NN_exercises_topic.ipynb, or the notebook named.

    The exit code is 0 when every point is earned, 1 when not, 2 when there is nothing to grade.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that whatever was started is ended
    try:
        solution = chapter_path(number, root / "solutions")
    except ValueError as error:
        _stop(str(error))
    notebook = notebook or root / "exercises" / exercise_name(solution.stem)
    try:
        with contextlib.nullcontext() if as_json else _progress(solution.stem) as on_progress:
            result = grade(
                solution, notebook, cell_timeout=cell_timeout, time_limit=time_limit, on_progress=on_progress
            )
    except ValueError as error:
        if as_json:
            click.echo(json.dumps(failed_grade(solution, str(error)).as_json(), ensure_ascii=False))
        _stop(str(error))
    except KeyboardInterrupt:
        click.echo("stopped; nothing is left running", err=True)
        sys.exit(130)
    try:
        remember(result, root)
    except OSError as error:
        click.echo(f"the result is not remembered: {error}", err=True)
    if as_json:
        click.echo(json.dumps(result.as_json(), ensure_ascii=False))
    else:
        Console().print(_grade_table(result))
    sys.exit(0 if result.earned == result.possible else 1)


@main.command("progress")
@click.option("--root", type=click.Path(path_type=Path), default=course_root, help="the course's folder")
def progress_command(root: Path) -> None:
    """Show what you have earned so far, chapter by chapter."""
    try:
        rows = chapters(root)
    except ValueError as error:
        _stop(str(error))
    Console().print(progress_table(rows))


@main.command("doctor")
def doctor_command() -> None:
    """Look at this machine: what is there, what is missing, and how ranks will run."""
    from course_lib.doctor import FAIL, examine, findings_table  # imports torch

    console = Console()
    with console.status("looking…"):
        findings = list(examine())
    console.print(findings_table(findings))
    sys.exit(1 if any(finding.state == FAIL for finding in findings) else 0)


def _stop(sentence: str) -> None:
    click.echo(sentence, err=True)
    sys.exit(2)


@contextlib.contextmanager
def _progress(chapter: str) -> Iterator[OnProgress]:
    """A bar on stderr; where that is no terminal, a line for each exercise as it begins."""
    console = Console(stderr=True)
    if not console.is_terminal:
        begun = {""}

        def say(exercise: str, done: int, cells: int) -> None:
            if exercise not in begun:
                begun.add(exercise)
                click.echo(f"grading {exercise}", err=True)

        yield say
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(BAR), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"{chapter}: starting a kernel", total=None)

        def show(exercise: str, done: int, cells: int) -> None:
            bar.update(
                task, description=f"{chapter}: {exercise or 'setting up'}", completed=done, total=cells
            )

        yield show


def _grade_table(result: Grade) -> Table:
    """Each exercise with its points, the facts that hold, the one that does not, and why that may be."""
    table = Table(box=None, show_header=False, expand=True, padding=(0, 1, 0, 0))
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    for each in result.exercises:
        style = "green" if each.status == "passed" else "red"
        points = Text(f"{each.earned} / {each.points}", style=f"bold {style}")
        table.add_row(Text(f"{each.id}  {each.title}", style="bold"), points)
        for fact in each.facts:
            table.add_row(Text(f"  ✓ {fact}", style="green"))
        lines = each.message.splitlines()
        if each.status != "passed" and lines:
            what = lines.pop(0) if each.status == "failed" else f"{each.status}: {lines.pop(0)}"
            table.add_row(Text(f"  ✗ {what}", style="red"))
        for line in lines:
            table.add_row(Text(f"    {line}"))
    table.add_section()
    table.add_row(
        Text(result.chapter, style="bold"), Text(f"{result.earned} / {result.possible}", style="bold")
    )
    return table


def progress_table(rows: list[tuple[str, int | None, int]]) -> Table:
    """Rows of ``grading.progress.chapters`` as a table; it shows in a notebook too."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for chapter, earned, possible in rows:
        filled = round(BAR * (earned or 0) / possible) if possible else 0
        points = "not graded yet" if earned is None else f"{earned} / {possible}"
        table.add_row(
            chapter, Text("━" * filled, style="green") + Text("─" * (BAR - filled), style="dim"), points
        )
    total = sum(possible for _, _, possible in rows)
    table.add_row(Text("all", style="bold"), "", f"{sum(earned or 0 for _, earned, _ in rows)} / {total}")
    return table
