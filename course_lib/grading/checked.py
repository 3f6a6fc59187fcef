"""What the checks in JupyterLab judged last: ``course grade`` says where the saved file holds another answer."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from course_lib.notebooks.exercise import answer_id, read_trusted

CHECKED = ".checked.json"  # exercise -> notebook, answer, time


def remember_check(exercise: str, source: str, notebook: Path, root: Path) -> None:
    """Take down the answer that a check in JupyterLab has just judged."""
    entry = {"notebook": str(notebook.resolve()), "source": source.strip(), "time": int(time.time())}
    text = json.dumps(_checked(root) | {exercise: entry}, indent=1)
    with contextlib.suppress(OSError):  # a folder that cannot be written is no reason not to check
        (root / CHECKED).write_text(text, encoding="utf-8")


def _checked(root: Path) -> dict[str, dict[str, Any]]:
    """Nothing where the file is missing or damaged: it is written anew by the next check."""
    try:
        found = json.loads((root / CHECKED).read_text(encoding="utf-8"))
        return {name: entry for name, entry in found.items() if {"notebook", "source", "time"} == set(entry)}
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        return {}


def unsaved(notebook: Path, root: Path) -> list[str]:
    """A sentence for each answer that was checked after the notebook was saved, and differs from the saved one."""
    saved = {answer_id(cell): cell.source.strip() for cell in read_trusted(notebook).cells}
    last_saved = int(notebook.stat().st_mtime)
    return [
        f"{exercise}: what you checked at {time.strftime('%H:%M', time.localtime(seen['time']))} is not in the file; "
        "save the notebook (Ctrl+S) and grade again."
        for exercise, seen in _checked(root).items()
        if saved.get(exercise, seen["source"]) != seen["source"]
        and seen["notebook"] == str(notebook.resolve())
        and seen["time"] >= last_saved
    ]
