"""The results that the course keeps, so that a chapter shows the whole comparison without hours of training.

``kept/runs.jsonl`` beside this file has a line for each finished run. ``COMMAND``, given in the project's folder, runs
what is missing there and changes nothing else.
"""

from __future__ import annotations

from pathlib import Path

from course_lib.comparison.finetuning.results import Line, Run, Runs, lines
from course_lib.comparison.finetuning.run import Setting

FOLDER = Path(__file__).parent / "kept"
SEEDS = range(3)
STEPS, MATMUL = 250, "medium"
COMMAND = f"python -m course_lib.comparison.finetuning --matmul {MATMUL} --out course_lib/comparison/finetuning/kept"


def kept_runs(task: str = "word-order", steps: int = STEPS) -> list[Run]:
    """Every finished run of this task with so many steps.

    Raises:
        ValueError: there is none.
    """
    like = Setting(task, "minilm", method="", start="", lr=0, seed=0, steps=steps, matmul=MATMUL)
    found = Runs(FOLDER / "runs.jsonl").like(like)
    if not found:
        raise ValueError(
            f"no run of {steps} steps of the task {task!r} is kept; this makes them: "
            f"{COMMAND} --task {task} --steps {steps}"
        )
    return found


def kept_lines(task: str = "word-order", steps: int = STEPS) -> list[Line]:
    """A line for each method that was run; a method that was not has none, and fewer seeds are said in the line."""
    return lines(kept_runs(task, steps), SEEDS)
