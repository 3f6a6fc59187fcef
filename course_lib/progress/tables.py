"""What ``course grade`` and ``course progress`` show in a terminal, in as many columns as it has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from course_lib.grading.grade import OnProgress
from course_lib.grading.results import Grade

BAR = 20  # characters


@contextlib.contextmanager
def grading_progress(chapter: str) -> Iterator[OnProgress]:
    """A bar on stderr; where that is no terminal, a line for each exercise as it begins."""
    console = Console(stderr=True)
    if not console.is_terminal:
        begun = set()

        def say(exercise: str, done: int, answers: int) -> None:
            if exercise not in begun:
                begun.add(exercise)
                click.echo(f"grading {exercise}", err=True)

        yield say
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(BAR), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"{chapter}: starting", total=None)

        def show(exercise: str, done: int, answers: int) -> None:
            bar.update(task, description=f"{chapter}: {exercise}", completed=done, total=answers)

        yield show


def hanging(mark: str, text: str, style: str = "") -> Table:
    """``mark`` with ``text`` beside it: lines that are too long go on below the text, not below the mark."""
    row = Table.grid(padding=0)
    row.add_column(width=len(mark), no_wrap=True)
    row.add_column(ratio=1)
    row.add_row(Text(mark, style=style), Text(text, style=style))
    return row


_SIGNS = {"passed": ("✓", "green"), "target missed": ("△", "yellow"), "unwritten": ("○", "dim")}


def grade_table(result: Grade) -> Table:
    """Each exercise with its points of both kinds, the facts that hold, those that do not, and what helps."""
    table = Table(box=None, show_header=False, expand=True, padding=(0, 1, 0, 0))
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    for each in result.exercises:
        sign, style = _SIGNS.get(each.status, ("✗", "red"))
        points = Text(_points(Grade(each.id, [each])), style=f"bold {style}")
        table.add_row(hanging(f"{each.id}  ", each.exercise.title, "bold"), points)
        for fact in each.facts:
            table.add_row(hanging("  ✓ ", fact, "green"))
        told = "" if each.status in ("passed", "target missed", "unwritten", "failed") else f"{each.status}: "
        for line in each.message.splitlines():
            if line.startswith((" ", "…")):
                table.add_row(hanging("    ", line.strip()))
            else:
                table.add_row(hanging(f"  {sign} ", told + line, style))
                told = ""
    table.add_section()
    table.add_row(Text(result.chapter, style="bold"), Text(_points(result), style="bold"))
    return table


def _points(result: Grade) -> str:
    """``right 3 / 3   target 0 / 1``, and the latter only where there is a target."""
    kinds = [(kind, *points.values()) for kind, points in result.kinds().items()]
    return "   ".join(f"{kind} {earned} / {all_}" for kind, earned, all_ in kinds if all_ or kind == "right")


def progress_table(rows: list[tuple[str, int | None, int]]) -> Table:
    """Rows of ``points.chapters`` as a table; it shows in a notebook too."""
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
