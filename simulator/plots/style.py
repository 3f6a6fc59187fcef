"""What all drawings share: their width, the sizes of their text, colours, units, titles.

A JupyterLab window of 1,100 px leaves 640 px for an output. A drawing of ``WIDTH`` inches fills them at its full
size, and no text in it is smaller than ``TEXT`` points, which are 12 px there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation


WIDTH = 6.6  # inches; an inch is 96 px in a browser
TEXT, TITLE = 9.0, 10.0  # points
CLEAR = 2.0  # px between a line and a number beside it, at matplotlib's 100 an inch


CATEGORIES = {
    "parameters": "#1b3a5c",
    "gradients": "#4a86ba",
    "optimizer_states": "#a9cbe8",
    "activations": "#cc6a24",
    "buffers": "#dcdcdc",
    "reserved": "#f0e3c4",
}


PARTS = ("#1b3a5c", "#cc6a24", "#a9cbe8", "#23614a", "#e8c547", "#7d5ba6", "#8fb99f", "#dcdcdc")


UNITS = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0}


def bare(axis: Axes) -> None:
    axis.tick_params(length=0, labelsize=TEXT)
    axis.spines[["top", "right", "left"]].set_visible(False)


def plain_axes(axis: Axes) -> None:
    """Axes with a line below and one on the left, and text of the smallest size."""
    axis.tick_params(labelsize=TEXT)
    axis.spines[["top", "right"]].set_visible(False)


def ticks_in(unit: str) -> Callable[[float, int], str]:
    """A formatter that writes the unit behind every tick: ``20 GB``."""
    return lambda value, _: f"{value:g} {unit}" if value else "0"


def grid_of(count: int) -> tuple[int, int]:
    """Rows and columns for panels that stand beside each other: two in a row have room, more are wrapped."""
    return (count + 1) // 2, min(count, 2)


def label_of(name: str) -> str:
    return name.replace("_", " ")


def titles_for(titles: Sequence[str] | None, count: int) -> Sequence[str]:
    if titles is None:
        return [""] * count
    if len(titles) != count:
        raise ValueError(f"{count} drawings need as many titles, not {len(titles)}")
    return titles


def unit_of(largest: float) -> tuple[str, float]:
    return next(((unit, size) for unit, size in UNITS.items() if largest >= size), ("bytes", 1.0))


def human(size: float) -> str:
    """``"12.3 GB"``: three digits, powers of ten."""
    unit, one = unit_of(size)
    return f"{size / one:.3g} {unit}"


def label_capacity(axis: Axes, capacity: float, size: float, device: str = "") -> None:
    """Write at the right end of the dashed line what it stands for: ``80 GB, one A100``."""
    axis.annotate(
        f"{human(capacity)},\n{device}" if device else human(capacity),
        (1, capacity / size),
        xycoords=("axes fraction", "data"),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=TEXT,
    )


def move_behind_line(figure: Figure, numbers: Sequence[Annotation], at: float, along: str) -> None:
    """Move each number that the line of the capacity would touch to the far side of the line.

    Args:
        numbers: labels at the ends of bars, a few points away from them.
        at: where the line is, in the units of the axis.
        along: ``"x"`` where bars lie, ``"y"`` where they stand.
    """
    figure.draw_without_rendering()  # only then is known where everything will be
    direction = "xy".index(along)
    for label in numbers:
        box = label.get_window_extent()
        axes = label.axes
        assert axes is not None
        line = axes.transData.transform((at, at))[direction]
        if box.min[direction] - CLEAR < line < box.max[direction] + CLEAR:
            label.xy = (at, label.xy[1]) if along == "x" else (label.xy[0], at)
