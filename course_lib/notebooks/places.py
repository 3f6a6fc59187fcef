"""Where the course lies on this machine, and what its notebooks are called. Imports nothing heavy."""

from __future__ import annotations

import time
from pathlib import Path

BACKUPS = ".backups"  # in the course's folder: a learner's files as they were before the course changed them


def course_root() -> Path:
    """The folder with ``notebooks/`` and ``solutions/``: where the package was installed from, else this one."""
    home = Path(__file__).resolve().parents[2]
    return home if (home / "solutions").is_dir() else Path.cwd()


def chapters_in(folder: Path) -> list[Path]:
    """The chapters' notebooks in reading order, without those that go in depth."""
    return sorted(p for p in folder.glob("[0-9][0-9]_*.ipynb") if not p.stem.endswith("_in_depth"))


def exercise_name(chapter: str) -> str:
    """``"05_ddp"`` -> ``"05_exercises_ddp.ipynb"``: a tab that is cut short still says what it is."""
    number, _, topic = chapter.partition("_")
    return f"{number}_exercises_{topic}.ipynb"


def chapter_path(number: str, solutions: Path) -> Path:
    """The solution of chapter ``"5"``, ``"05"`` or ``"05_ddp"``.

    Raises:
        ValueError: when there is none; names the chapters that have exercises.
    """
    known = sorted(solutions.glob("[0-9][0-9]_*.ipynb"))
    for path in known:
        if number in (path.stem, path.stem[:2], path.stem[:2].removeprefix("0")):
            return path
    names = ", ".join(path.stem[:2] for path in known) or "none yet"
    raise ValueError(f"there are no exercises for chapter {number!r}; chapters with exercises: {names}")


def back_up(path: Path, root: Path) -> Path:
    """Copy a file into the course's ``.backups``, under its name and the time; where the copy is."""
    folder = root / BACKUPS
    folder.mkdir(exist_ok=True)
    name, number = f"{path.stem}.{time.strftime('%Y-%m-%d_%H-%M-%S')}", 1
    copy = folder / f"{name}{path.suffix}"
    while copy.exists():
        number += 1
        copy = folder / f"{name}_{number}{path.suffix}"
    copy.write_bytes(path.read_bytes())
    return copy
