"""What the learner has earned so far, remembered in ``.progress.json`` beside the notebooks."""

from __future__ import annotations

import json
import os
from pathlib import Path

from course_lib.grading.build import read_notebook
from course_lib.grading.exercise import read_exercises
from course_lib.grading.grade import Grade
from course_lib.places import course_root

FILE = ".progress.json"


def load(root: Path) -> dict[str, dict[str, int]]:
    """Points by chapter and exercise, as last graded; nothing where nothing was, or the file is damaged."""
    try:
        found = json.loads((root / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def remember(result: Grade, root: Path) -> None:
    """Store the result of grading a chapter, in place of the one before."""
    chapters = load(root) | {result.chapter: {each.id: each.earned for each in result.exercises}}
    path, draft = root / FILE, root / f"{FILE}.{os.getpid()}"
    try:
        draft.write_text(json.dumps(chapters, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def chapters(root: Path | None = None) -> list[tuple[str, int | None, int]]:
    """``(chapter, earned, possible)`` in the course's order; ``earned`` is None where nothing was graded yet."""
    root = root or course_root()
    earned = load(root)
    rows = []
    for path in sorted((root / "solutions").glob("[0-9][0-9]_*.ipynb")):
        exercises = read_exercises(read_notebook(path), path.stem)
        mine = earned.get(path.stem)
        points = None if mine is None else sum(mine.get(each.id, 0) for each in exercises)
        rows.append((path.stem, points, sum(each.points for each in exercises)))
    return rows
