"""What all drawings of bytes share: colours, units, titles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


CATEGORIES = {
    "parameters": "#1b3a5c",
    "gradients": "#4a86ba",
    "optimizer_states": "#a9cbe8",
    "activations": "#cc6a24",
    "buffers": "#dcdcdc",
}


PARTS = ("#1b3a5c", "#cc6a24", "#a9cbe8", "#23614a", "#e8c547", "#7d5ba6", "#8fb99f", "#dcdcdc")


UNITS = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0}


def bare(axis: Axes) -> None:
    axis.tick_params(length=0, labelsize=8)
    axis.spines[["top", "right", "left"]].set_visible(False)


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
