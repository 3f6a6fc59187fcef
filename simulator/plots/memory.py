"""Drawings of memory: by rank, over time, and beside the step time of several plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.ledgers.memory import MemoryBreakdown
from simulator.plots.picture import Picture, render
from simulator.plots.style import CATEGORIES, bare, human, label_of, titles_for, unit_of

if TYPE_CHECKING:
    pass


def plot_memory(
    *memories: MemoryBreakdown | Sequence[MemoryBreakdown],
    titles: Sequence[str] | None = None,
    capacity: float | None = None,
    bars: Sequence[str] | None = None,
) -> Picture:
    """What each rank must hold, stacked by category; several (predicted, measured; plans) side by side.

    Args:
        memories: one breakdown, or one for every rank.
        titles: one for each.
        capacity: bytes of one device, drawn as a line.
        bars: what the bars of each set are called, where they are not the ranks.
    """
    from matplotlib.figure import Figure

    sets = [[m] if isinstance(m, MemoryBreakdown) else list(m) for m in memories]
    if not sets or not all(sets):
        raise ValueError("there is nothing to draw: give at least one MemoryBreakdown")
    titles = titles_for(titles, len(sets))
    if bars is not None and any(len(ranks) != len(bars) for ranks in sets):
        raise ValueError(f"{len(bars)} bars are named, so each set must have as many, not {len(sets[0])}")
    widths = [max(2.0, (0.45 if bars is None else 0.8) * len(ranks)) for ranks in sets]
    width = min(12, max(5.5, 1.8 + sum(widths) + 0.4 * len(sets)))  # the legend alone takes 5.5 inches
    figure = Figure(figsize=(width, 3.2), layout="constrained")
    axes = figure.subplots(1, len(sets), sharey=True, squeeze=False, width_ratios=widths)[0]
    unit, size = unit_of(max(m.total for ranks in sets for m in ranks))
    for axis, ranks, title in zip(axes, sets, titles, strict=True):
        base = [0.0] * len(ranks)
        for name, colour in CATEGORIES.items():
            heights = [getattr(m, name) / size for m in ranks]
            axis.bar(range(len(ranks)), heights, bottom=base, color=colour, width=0.8, label=label_of(name))
            base = [b + h for b, h in zip(base, heights, strict=True)]
        if len(ranks) <= 16:
            for rank, total in enumerate(base):
                axis.text(rank, total, f"{total:.3g}", ha="center", va="bottom", fontsize=8)
        if capacity is not None:
            axis.axhline(capacity / size, color="#222222", linestyle="--", linewidth=1)
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xticks(range(0, len(ranks), 1 if bars or len(ranks) <= 16 else len(ranks) // 8), bars)
        axis.set_xlabel("rank" if bars is None else "", fontsize=8)
        axis.set_xlim(-0.8, len(ranks) - 0.2)
        bare(axis)
    axes[0].set_ylim(0, 1.12 * max([capacity or 0, *(m.total for ranks in sets for m in ranks)]) / size)
    axes[0].set_ylabel(unit, fontsize=8)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=5, fontsize=8, frameon=False
    )
    sentences = (_memory_sentence(ranks, title, bars) for ranks, title in zip(sets, titles, strict=True))
    return render(figure, "; ".join(sentences) + ".")


def _memory_sentence(ranks: Sequence[MemoryBreakdown], title: str, bars: Sequence[str] | None) -> str:
    subject = f"Memory of {title}" if title else "Memory"
    if bars is not None:
        held = ", ".join(f"{bar} {human(m.total)}" for bar, m in zip(bars, ranks, strict=True))
        return f"{subject}: {held}"
    heaviest = max(range(len(ranks)), key=lambda rank: ranks[rank].total)
    largest = max(CATEGORIES, key=lambda name: getattr(ranks[heaviest], name))
    most = human(ranks[heaviest].total)
    return f"{subject}: rank {heaviest} holds most, {most}, the largest part being {label_of(largest)}"
