"""The drawing of several plans: what a step's time goes into, and the memory of the heaviest rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simulator.inputs.checks import positive
from simulator.ledgers.memory import MemoryBreakdown
from simulator.plots.picture import Picture, render
from simulator.plots.style import (
    CATEGORIES,
    PARTS,
    TEXT,
    TITLE,
    WIDTH,
    bare,
    human,
    label_of,
    move_behind_line,
    ticks_in,
    unit_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation


def plot_plans(
    plans: Mapping[str, tuple[Mapping[str, float], MemoryBreakdown]],
    capacity: float | None = None,
    device: str = "",
) -> Picture:
    """Several plans, one row each: what a step's time goes into, and the memory of the heaviest rank.

    Args:
        plans: by name: seconds of each part of a step, and the memory.
        capacity: bytes of one device, drawn as a line.
        device: its name, written beside the line.
    """
    from matplotlib.figure import Figure

    if not plans:
        raise ValueError("there is nothing to draw: give at least one plan")
    if capacity is not None:
        positive(capacity=capacity)
    figure = Figure(figsize=(WIDTH, 2 * (1.1 + 0.36 * len(plans))), layout="constrained")
    time, memory = figure.subplots(2, 1, sharey=True)
    parts = list(dict.fromkeys(part for seconds, _ in plans.values() for part in seconds))
    colours = {part: PARTS[i % len(PARTS)] for i, part in enumerate(parts)}
    _bars(time, [seconds for seconds, _ in plans.values()], colours, "time of a step", "s")
    unit, size = unit_of(max(breakdown.occupied for _, breakdown in plans.values()))
    scaled = [{name: getattr(b, name) / size for name in CATEGORIES} for _, b in plans.values()]
    numbers = _bars(memory, scaled, CATEGORIES, "memory of the heaviest rank", unit)
    if capacity is not None:
        memory.axvline(capacity / size, color="#222222", linestyle="--", linewidth=1)
        name = f" {human(capacity)}, {device}" if device else f" {human(capacity)}"
        memory.annotate(
            name,
            (capacity / size, 1),
            xycoords=("data", "axes fraction"),
            va="bottom",
            ha="center",
            fontsize=TEXT,
        )
    time.set_yticks(range(len(plans)), list(plans))
    time.invert_yaxis()
    if capacity is not None:
        move_behind_line(figure, numbers, capacity / size, "x")
    described = [
        f"{name} takes {sum(seconds.values()):.3g} s and {human(breakdown.occupied)}"
        for name, (seconds, breakdown) in plans.items()
    ]
    return render(figure, "; ".join(described) + ".")


def _bars(
    axis: Axes, rows: Sequence[Mapping[str, float]], colours: Mapping[str, str], title: str, unit: str
) -> list[Annotation]:
    """Draw a row of bars for each plan; the numbers at their ends."""
    from matplotlib.ticker import FuncFormatter

    base = [0.0] * len(rows)
    for name, colour in colours.items():
        lengths = [row.get(name, 0) for row in rows]
        if any(lengths):
            axis.barh(range(len(rows)), lengths, left=base, color=colour, height=0.7, label=label_of(name))
        base = [b + length for b, length in zip(base, lengths, strict=True)]
    where = {"xytext": (2, 0), "textcoords": "offset points", "va": "center", "fontsize": TEXT}
    numbers = [axis.annotate(f"{total:.3g}", (total, row), **where) for row, total in enumerate(base)]
    axis.margins(x=0.15)
    axis.set_title(title, loc="left", fontsize=TITLE, pad=18)
    axis.xaxis.set_major_formatter(FuncFormatter(ticks_in(unit)))
    axis.legend(
        loc="upper left",
        bbox_to_anchor=(1, 1),
        fontsize=TEXT,
        frameon=False,
        handlelength=1.2,
        borderaxespad=0,
    )
    bare(axis)
    return numbers
