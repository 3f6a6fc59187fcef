"""Bars of named parts, stacked: what stays the same from bar to bar, and what shrinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.inputs.checks import amounts
from simulator.plots.picture import Picture, render
from simulator.plots.style import PARTS, TEXT, WIDTH, bare, human, ticks_in, unit_of


def plot_parts(
    bars: Mapping[str, Mapping[str, float]],
    x: str = "",
    alt: str | None = None,
    colours: Sequence[str] = PARTS,
    line: float | None = None,
    labels: Mapping[str, str] | None = None,
) -> Picture:
    """One bar for each entry, its parts stacked from the bottom in the order in which the first bar has them.

    Args:
        bars: name of a bar -> name of a part -> bytes.
        x: what the bars are, below the axis.
        alt: the sentence that says what is seen; by default the total of each bar.
        colours: one for each part.
        line: bytes at which a dashed line is drawn.
        labels: for a part, what is written in the middle of each of its bands.

    Raises:
        ValueError: there is no bar, a bar has no part, or bytes are not a number of at least 0.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    if not bars or not all(bars.values()):
        raise ValueError("there is nothing to draw: give at least one bar, each with at least one part")
    for parts in bars.values():
        amounts(bytes=[*parts.values(), line or 0])
    totals = {name: sum(parts.values()) for name, parts in bars.items()}
    unit, size = unit_of(max(totals.values()))
    names = list(dict.fromkeys(part for parts in bars.values() for part in parts))
    figure = Figure(figsize=(WIDTH, 2.4), layout="constrained")
    axis = figure.subplots()
    base, limit = [0.0] * len(bars), (line or 0) / size
    for i, part in enumerate(names):
        heights = [parts.get(part, 0) / size for parts in bars.values()]
        axis.bar(
            range(len(bars)), heights, bottom=base, color=colours[i % len(colours)], width=0.7, label=part
        )
        for place, (b, h) in enumerate(zip(base, heights, strict=True)):
            if h and part in (labels or {}):
                axis.text(
                    place,
                    b + h / 2,
                    (labels or {})[part],
                    ha="center",
                    va="center",
                    fontsize=TEXT,
                    bbox={"facecolor": "white", "edgecolor": "none", "boxstyle": "round,pad=0.2"},
                )
        base = [b + h for b, h in zip(base, heights, strict=True)]
    for place, total in enumerate(base):
        # The line must not run through the number.
        above = max(total, 1.01 * limit) if limit < 1.08 * total else total
        axis.text(place, above, f"{total:.3g}", ha="center", va="bottom", fontsize=TEXT)
    if line is not None:
        axis.axhline(limit, color="#222222", linestyle="--", linewidth=1.5)
    axis.set_xticks(range(len(bars)), list(bars))
    axis.set_xlabel(x, fontsize=TEXT)
    axis.set_xlim(-0.7, len(bars) - 0.3)
    axis.set_ylim(0, 1.12 * (max(*base, limit) or 1))
    axis.yaxis.set_major_formatter(FuncFormatter(ticks_in(unit)))
    bare(axis)
    handles, named = axis.get_legend_handles_labels()
    figure.legend(
        handles[::-1], named[::-1], loc="outside right upper", fontsize=TEXT, frameon=False, handlelength=1.2
    )
    held = ", ".join(f"{name} {human(total)}" for name, total in totals.items())
    return render(figure, alt or f"Stacked bars: {held}.")
