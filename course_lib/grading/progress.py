"""What the learner has earned so far, remembered in ``.progress.json`` beside the notebooks."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import click

from course_lib.grading.exercise import answer_id, read_exercises, read_trusted
from course_lib.grading.files import back_up
from course_lib.grading.results import Grade
from course_lib.places import course_root

FILE = ".progress.json"
HINTS = "hints"
CHECKED = ".checked.json"  # what the checks in JupyterLab judged last: exercise -> notebook, answer, time


def load(root: Path) -> dict[str, dict[str, int]]:
    """Points by chapter and exercise, as last graded; of a damaged file, what can be read.

    The chapter graded last is the last one. Under ``"hints"`` stands how many hints to each exercise were asked for.
    """
    found = _read(root)
    if not isinstance(found, dict):
        return {}
    tables = {name: table for name, table in found.items() if isinstance(table, dict)}
    return {
        name: {key: n for key, n in table.items() if type(n) is int and n >= 0}
        for name, table in tables.items()
    }


def _read(root: Path) -> object:
    try:
        return json.loads((root / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        return None


def remember(result: Grade, root: Path) -> None:
    """Store the result of grading a chapter, in place of the one before."""
    found = load(root)
    found.pop(result.chapter, None)
    _store(found | {result.chapter: {each.id: each.earned for each in result.exercises}}, root)


def next_hint(exercise: str, hints: int, root: Path) -> int:
    """Which hint to give now, from 1: one further than the last time, up to the last there is."""
    found = load(root)
    asked = found.get(HINTS, {})
    level = min(hints, asked.get(exercise, 0) + 1)
    _store({HINTS: {**asked, exercise: level}} | {k: v for k, v in found.items() if k != HINTS}, root)
    return level


def forget_hints(exercise: str, root: Path) -> None:
    """Begin with the first hint again."""
    found = load(root)
    if found.get(HINTS, {}).pop(exercise, None):
        _store(found, root)


def remember_check(exercise: str, source: str, notebook: Path, root: Path) -> None:
    """Take down the answer that a check in JupyterLab has just judged."""
    entry = {"notebook": str(notebook.resolve()), "source": source.strip(), "time": int(time.time())}
    with contextlib.suppress(OSError):  # a folder that cannot be written is no reason not to check
        (root / CHECKED).write_text(
            json.dumps(_checked(root) | {exercise: entry}, indent=1), encoding="utf-8"
        )


def _checked(root: Path) -> dict[str, dict[str, Any]]:
    """Nothing where the file is missing or damaged: it is written anew by the next check."""
    try:
        found = json.loads((root / CHECKED).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    wanted = {"notebook", "source", "time"}
    return {k: v for k, v in found.items() if wanted == set(v)} if isinstance(found, dict) else {}


def unsaved(notebook: Path, root: Path) -> list[str]:
    """A sentence for each answer that was checked after the notebook was saved, and differs from the saved one."""
    saved = {answer_id(cell): cell.source.strip() for cell in read_trusted(notebook).cells if answer_id(cell)}
    last_saved = int(notebook.stat().st_mtime)
    return [
        f"{exercise}: what you checked at {time.strftime('%H:%M', time.localtime(seen['time']))} is not in the file; "
        "save the notebook (Ctrl+S) and grade again."
        for exercise, seen in _checked(root).items()
        if exercise in saved
        and seen["notebook"] == str(notebook.resolve())
        and seen["time"] >= last_saved
        and seen["source"] != saved[exercise]
    ]


def _store(found: dict[str, dict[str, int]], root: Path) -> None:
    path, draft = root / FILE, root / f"{FILE}.{os.getpid()}"
    if _read(root) != load(root):
        copy = back_up(path, root)
        click.echo(f"{FILE} was damaged: it is kept as {copy.relative_to(root)}", err=True)
    try:
        draft.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def chapters(root: Path | None = None) -> list[tuple[str, int | None, int]]:
    """``(chapter, earned, possible)`` in the course's order; ``earned`` is None where nothing was graded yet."""
    root = root or course_root()
    earned = load(root)
    rows = []
    for path in sorted((root / "solutions").glob("[0-9][0-9]_*.ipynb")):
        exercises = read_exercises(read_trusted(path), path.stem)
        mine = earned.get(path.stem)
        points = None if mine is None else sum(mine.get(each.id, 0) for each in exercises)
        rows.append((path.stem, points, sum(each.points for each in exercises)))
    return rows
