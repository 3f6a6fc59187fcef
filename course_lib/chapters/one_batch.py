"""Chapter 18's picture of one batch whose texts have different tasks: with prompts, and with LoRA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TASKS = ("#cc6a24", "#1b3a5c", "#23614a", "#7d5ba6")
WORDS, FROZEN = "#ffffff", "#d2d2d2"


def plot_one_batch(tasks: Sequence[str]) -> Picture:
    """Left each text has its task's vectors before it, and all go through one frozen matrix. Right the same matrix,
    and beside it an A and a B for each text.

    Raises:
        ValueError: there are no tasks, or more than colours.
    """
    from matplotlib.figure import Figure

    if not 1 <= len(tasks) <= len(TASKS):
        raise ValueError(f"give 1 to {len(TASKS)} tasks, not {len(tasks)}")
    figure = Figure(figsize=(WIDTH, 2.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for row, (task, colour) in enumerate(zip(tasks, TASKS, strict=False)):
        _box(left, 0, row, 1.5, colour, task, "white")
        for axis, at in ((left, 1.6), (right, 0)):
            _box(axis, at, row, 1.3, WORDS, f"text {row + 1}")
        _box(right, 3.6, row, 1.1, colour, "A", "white")
        _box(right, 4.8, row, 1.1, colour, "B", "white")
        right.text(3.4, row + 0.4, "+", ha="center", va="center", fontsize=TITLE)
    titles = "prompts: all share one product with W", "LoRA: each text has two more of its own"
    for axis, at, title in ((left, 3.4, titles[0]), (right, 1.8, titles[1])):
        _box(axis, at, 0, 1.3, FROZEN, "W", rows=len(tasks))
        axis.set_title(title, loc="left", fontsize=TITLE)
        axis.set(xlim=(-0.1, 6), ylim=(len(tasks), -0.1))
        axis.set_axis_off()
    return render(
        figure,
        f"At one matrix W. Prompts: {len(tasks)} texts, each with the vectors of its task before it, go through W. "
        "LoRA: the texts go through W, and each through an A and a B of its own.",
    )


def _box(
    axis: Axes, x: float, row: int, wide: float, colour: str, says: str, ink: str = "#222222", rows: int = 1
) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((x, row), wide, rows - 0.2, facecolor=colour, edgecolor="#444444"))
    axis.text(x + wide / 2, row + (rows - 0.2) / 2, says, ha="center", va="center", fontsize=TEXT, color=ink)
