"""The drawing that compares schedules: how long the ranks wait, over what they must keep."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.inputs.checks import amounts
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

PREDICTED, MEASURED = "#143f70", "#cc6a26"


def plot_bubble_and_memory(
    predicted: Mapping[str, tuple[float, float]],
    measured: Mapping[str, tuple[float, float]] | None = None,
    *,
    x: str = "microbatches in flight on the fullest rank",
    y: str = "bubble",
    alt: str | None = None,
) -> Picture:
    """One point a schedule: to the left is less memory, further down is less waiting.

    Args:
        predicted: name -> (memory, bubble as a fraction of the time). Names stand beside their points; those of
            schedules with the same point stand below each other.
        measured: the same for what was measured, drawn as crosses.
        x, y: what the axes say.
        alt: the sentence that says what is seen; by default one with the predicted numbers.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    if not predicted:
        raise ValueError("there is nothing to draw: give at least one schedule")
    for memory, bubble in (*predicted.values(), *(measured or {}).values()):
        amounts(memory=[memory], bubble=[bubble])
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axis = figure.subplots()
    names: dict[tuple[float, float], list[str]] = {}
    for name, (memory, bubble) in predicted.items():
        names.setdefault((round(memory, 6), round(bubble, 6)), []).append(name)
    axis.plot(*zip(*names, strict=True), "o", color=PREDICTED, markersize=8, label="predicted")
    if measured:
        axis.plot(*zip(*measured.values(), strict=True), "x", color=MEASURED, markersize=8, markeredgewidth=2)
        axis.lines[-1].set_label("measured")
        axis.legend(fontsize=TEXT, frameon=False, loc="upper right")
    every = [*predicted.values(), *(measured or {}).values()]
    longest = 1.25 * max(memory for memory, _ in every) or 1
    axis.set_xlim(0, longest)
    taken: dict[float, float] = {}  # bubble -> how far the labels at this height reach to the right
    for point, those in sorted(names.items()):
        below = point[0] < taken.get(point[1], -1)  # it would lie on the label of the point to its left
        axis.annotate(
            "\n".join(those),
            point,
            xytext=(7, -6 if below else 6),
            textcoords="offset points",
            fontsize=TEXT,
            va="top" if below else "bottom",
        )
        letters = max(map(len, those))
        taken[point[1]] = point[0] + longest * (7 + 0.65 * TEXT * letters) / (72 * WIDTH - 60)
    axis.set_ylim(0, 1.25 * max(bubble for _, bubble in every) or 1)
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.set_xlabel(x, fontsize=TEXT, loc="right")
    axis.set_ylabel(y, fontsize=TEXT)
    plain_axes(axis)
    return render(figure, alt or sentence(predicted, x, y))


def sentence(predicted: Mapping[str, tuple[float, float]], x: str, y: str) -> str:
    """What is seen, for readers who see no picture."""
    said = ", ".join(f"{name} {bubble:.1%} at {memory:.3g}" for name, (memory, bubble) in predicted.items())
    return f"{y[:1].upper()}{y[1:]} over {x}: {said}."
