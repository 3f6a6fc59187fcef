"""What the learner has earned so far, remembered in ``.progress.json`` beside the notebooks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from course_lib.grading.results import Grade
from course_lib.notebooks.exercise import read_exercises, read_trusted
from course_lib.notebooks.places import back_up, course_root

FILE = ".progress.json"
HINTS = "hints"
LANE = "lane"


def load(root: Path) -> dict[str, dict[str, int]]:
    """Points by chapter and exercise, as last graded; of a damaged file, what can be read.

    The chapter graded last is the last one. Under ``"hints"`` stands how many hints to each exercise were asked for,
    under ``"lane"`` the lane that the reader wants.
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
    if os.environ.get("COURSE_POINTS") == "none":
        return {}
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


def choose_lane(lane: str, root: Path) -> None:
    """Remember which lane of the map the reader wants."""
    if lane_of(root) != lane:
        _store(load(root) | {LANE: {lane: 1}}, root)


def lane_of(root: Path) -> str | None:
    """The lane of the map that the reader wants, if they have said so."""
    return next(iter(load(root).get(LANE, {})), None)


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
