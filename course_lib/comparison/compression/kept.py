"""The results that the course keeps, so that a chapter shows the whole comparison without an hour of training.

``kept/runs.jsonl`` beside this file has a line for each finished run. ``COMMAND``, given in the project's folder, runs
what is missing there and changes nothing else.
"""

from __future__ import annotations

from pathlib import Path

from course_lib.comparison.compression.methods import LRS
from course_lib.comparison.compression.results import Line, Runs, lines
from course_lib.comparison.compression.run import Setting
from course_lib.comparison.runs import Run

FOLDER = Path(__file__).parent / "kept"
SEEDS = range(3)
STEPS = 160
COMMAND = "python -m course_lib.comparison.compression --out course_lib/comparison/compression/kept"


def like_kept(task: str) -> Setting:
    """The setting whose task, steps, batch and ranks the kept runs of a task have."""
    return Setting(task, method="", lr=0, seed=0, steps=STEPS)


def kept_runs(task: str = "docs") -> list[Run]:
    """Every kept run of a task, as ``train_one`` returned it.

    Raises:
        ValueError: there is none.
    """
    found = Runs(FOLDER / "runs.jsonl").like(like_kept(task))
    if not found:
        raise ValueError(f"no run of the task {task!r} is kept; this makes them: {COMMAND} --task {task}")
    return found


def kept_lines(task: str = "docs") -> list[Line]:
    """A line for each method, at the learning rate that was chosen for it."""
    return lines(kept_runs(task), SEEDS, LRS)
