"""The drawing of bytes over time: one row a rank, stacked by category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.ledgers.memory import MemoryHistory
from simulator.plots.picture import Picture, render
from simulator.plots.style import CATEGORIES, bare, human, label_of, titles_for, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_bytes_over_time(
    *histories: Sequence[MemoryHistory], titles: Sequence[str] | None = None, alt: str | None = None
) -> Picture:
    """Bytes alive on every rank over time, stacked by category, with the peak: one row a rank, one column each.

    Args:
        histories: for each column, the ranks' histories, such as ``replay`` returns.
        titles: one for each column.
        alt: the sentence that says what is seen; by default one with the peaks, on which two machines need not
            agree where they were measured.
    """
    from matplotlib.figure import Figure

    if not histories or not all(histories):
        raise ValueError("there is nothing to draw: give at least one list of histories")
    titles = titles_for(titles, len(histories))
    rows, columns = max(map(len, histories)), len(histories)
    figure = Figure(figsize=(12, 0.8 + max(2.0, 0.95 * rows)), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    every = [history for ranks in histories for history in ranks]
    unit, size = unit_of(max(history.peak.bytes for history in every))
    for column, (ranks, title) in enumerate(zip(histories, titles, strict=True)):
        axes[0, column].set_title(title, loc="left", fontsize=10)
        for history, axis in zip(ranks, axes[:, column], strict=False):
            _stack(axis, history, size)
            axis.set_ylabel(f"rank {history.rank}", fontsize=8, rotation=0, ha="right", va="center")
        for axis in axes[len(ranks) :, column]:
            axis.set_visible(False)
    axes[0, 0].set_ylim(0, 1.3 * max(history.peak.bytes for history in every) / size)
    axes[-1, -1].set_xlabel(f"time (heights in {unit})", fontsize=8, loc="right")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=5, fontsize=8, frameon=False)
    return render(figure, alt or "; ".join(map(_history_sentence, histories, titles)) + ".")


def _stack(axis: Axes, history: MemoryHistory, size: float) -> None:
    times = [*history.times, history.end]
    held = [*history.held, history.held[-1]]
    base = [0.0] * len(held)
    for name, colour in CATEGORIES.items():
        top = [b + getattr(h, name) / size for b, h in zip(base, held, strict=True)]
        if any(getattr(h, name) for h in held):
            axis.fill_between(times, base, top, step="post", color=colour, linewidth=0, label=label_of(name))
        base = top
    peak = history.peak
    late = peak.time > (times[0] + times[-1]) / 2
    axis.plot(peak.time, peak.bytes / size, marker="v", color="#222222", markersize=4)
    axis.annotate(
        f"{human(peak.bytes)} at {peak.action}" if peak.action else human(peak.bytes),
        (peak.time, peak.bytes / size),
        xytext=(-5 if late else 5, 4),
        textcoords="offset points",
        ha="right" if late else "left",
        fontsize=8,
    )
    bare(axis)


def _history_sentence(ranks: Sequence[MemoryHistory], title: str) -> str:
    history = max(ranks, key=lambda h: h.peak.bytes)
    where = f" at {history.peak.action}" if history.peak.action else ""
    subject = f"Memory over time of {title}" if title else "Memory over time"
    return f"{subject}: rank {history.rank} peaks at {human(history.peak.bytes)}{where}"
