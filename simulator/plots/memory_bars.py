"""The drawing of memory by rank: one bar each, stacked by category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.inputs.checks import positive
from simulator.ledgers.memory import MemoryBreakdown
from simulator.plots.picture import Picture, render
from simulator.plots.style import (
    CATEGORIES,
    TEXT,
    TITLE,
    WIDTH,
    bare,
    human,
    label_capacity,
    label_of,
    move_behind_line,
    ticks_in,
    titles_for,
    unit_of,
)

if TYPE_CHECKING:
    from matplotlib.text import Annotation


def plot_memory(
    *memories: MemoryBreakdown | Sequence[MemoryBreakdown],
    titles: Sequence[str] | None = None,
    capacity: float | None = None,
    bars: Sequence[str] | None = None,
    device: str = "",
) -> Picture:
    """What each rank must hold, stacked by category; several (predicted, measured; plans) side by side.

    Args:
        memories: one breakdown, or one for every rank.
        titles: one for each.
        capacity: bytes of one device, drawn as a line.
        bars: what the bars of each set are called, where they are not the ranks.
        device: the device's name, written beside its line: ``"one V100"``.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    sets = [[m] if isinstance(m, MemoryBreakdown) else list(m) for m in memories]
    if not sets or not all(sets):
        raise ValueError("there is nothing to draw: give at least one MemoryBreakdown")
    if capacity is not None:
        positive(capacity=capacity)
    titles = titles_for(titles, len(sets))
    if bars is not None and any(len(ranks) != len(bars) for ranks in sets):
        raise ValueError(f"{len(bars)} bars are named, so each set must have as many, not {len(sets[0])}")
    longest = max((len(bar) for bar in bars or ()), default=0)
    need = sum(max(1.1, max(0.42, 0.085 * longest + 0.1) * len(ranks)) for ranks in sets)
    room = WIDTH - 1.9  # what the legend and the ticks leave
    stacked = need > room and len(sets) > 1
    figure = Figure(figsize=(WIDTH, 0.2 + 2.6 * (len(sets) if stacked else 1)), layout="constrained")
    if stacked:
        axes = figure.subplots(len(sets), 1, sharey=True, squeeze=False)[:, 0]
    else:
        ratios = [max(2, len(ranks)) for ranks in sets]
        axes = figure.subplots(1, len(sets), sharey=True, squeeze=False, width_ratios=ratios)[0]
    unit, size = unit_of(max([capacity or 0, *(m.occupied for ranks in sets for m in ranks)]))
    numbers: list[Annotation] = []
    for axis, ranks, title in zip(axes, sets, titles, strict=True):
        base = [0.0] * len(ranks)
        for name, colour in CATEGORIES.items():
            heights = [getattr(m, name) / size for m in ranks]
            if any(heights):
                axis.bar(
                    range(len(ranks)), heights, bottom=base, color=colour, width=0.8, label=label_of(name)
                )
            base = [b + h for b, h in zip(base, heights, strict=True)]
        if len(ranks) <= 12:
            where = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom"}
            for rank, total in enumerate(base):
                numbers.append(axis.annotate(f"{total:.3g}", (rank, total), fontsize=TEXT, **where))
        if capacity is not None:
            axis.axhline(capacity / size, color="#222222", linestyle="--", linewidth=1)
            if stacked or axis is axes[-1]:
                label_capacity(axis, capacity, size, device)
        axis.set_title(title, loc="left", fontsize=TITLE)
        labels = [bar.replace(" ", "\n") for bar in bars] if bars and need > room and not stacked else bars
        axis.set_xticks(range(0, len(ranks), 1 if bars or len(ranks) <= 16 else len(ranks) // 8), labels)
        axis.set_xlabel("rank" if bars is None else "", fontsize=TEXT)
        axis.set_xlim(-0.8, len(ranks) - 0.2)
        bare(axis)
    axes[0].set_ylim(0, 1.15 * max([capacity or 0, *(m.occupied for ranks in sets for m in ranks)]) / size)
    axes[0].yaxis.set_major_formatter(FuncFormatter(ticks_in(unit)))
    drawn = {}
    for axis in axes:
        drawn |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    shown = [
        label_of(name) for name in reversed(CATEGORIES) if label_of(name) in drawn
    ]  # as they are stacked
    handles = [drawn[label] for label in shown]
    figure.legend(handles, shown, loc="outside right upper", fontsize=TEXT, frameon=False, handlelength=1.2)
    if capacity is not None:
        move_behind_line(figure, numbers, capacity / size, "y")
    sentences = (memory_sentence(ranks, title, bars) for ranks, title in zip(sets, titles, strict=True))
    return render(figure, "; ".join(sentences) + ".")


def memory_sentence(ranks: Sequence[MemoryBreakdown], title: str, bars: Sequence[str] | None) -> str:
    subject = f"Memory of {title}" if title else "Memory"
    if bars is not None:
        held = ", ".join(f"{bar} {human(m.occupied)}" for bar, m in zip(bars, ranks, strict=True))
        return f"{subject}: {held}"
    heaviest = max(range(len(ranks)), key=lambda rank: ranks[rank].occupied)
    largest = max(CATEGORIES, key=lambda name: getattr(ranks[heaviest], name))
    most = human(ranks[heaviest].occupied)
    return f"{subject}: rank {heaviest} holds most, {most}, the largest part being {label_of(largest)}"
