"""Where the course lies on this machine, and what its notebooks are called. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path


def course_root() -> Path:
    """The folder with ``notebooks/`` and ``solutions/``: where the package was installed from, else this one."""
    home = Path(__file__).resolve().parents[1]
    return home if (home / "solutions").is_dir() else Path.cwd()


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
