"""Drawings of memory: by rank, over time, and beside the step time of several plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simulator.memory import MemoryBreakdown
from simulator.picture import Picture, render
from simulator.replay import MemoryHistory

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
    titles = _titles(titles, len(sets))
    if bars is not None and any(len(ranks) != len(bars) for ranks in sets):
        raise ValueError(f"{len(bars)} bars are named, so each set must have as many, not {len(sets[0])}")
    widths = [max(2.0, (0.45 if bars is None else 0.8) * len(ranks)) for ranks in sets]
    width = min(12, max(5.5, 1.8 + sum(widths) + 0.4 * len(sets)))  # the legend alone takes 5.5 inches
    figure = Figure(figsize=(width, 3.2), layout="constrained")
    axes = figure.subplots(1, len(sets), sharey=True, squeeze=False, width_ratios=widths)[0]
    unit, size = _unit(max(m.total for ranks in sets for m in ranks))
    for axis, ranks, title in zip(axes, sets, titles, strict=True):
        base = [0.0] * len(ranks)
        for name, colour in CATEGORIES.items():
            heights = [getattr(m, name) / size for m in ranks]
            axis.bar(range(len(ranks)), heights, bottom=base, color=colour, width=0.8, label=_label(name))
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
        _bare(axis)
    axes[0].set_ylim(0, 1.12 * max([capacity or 0, *(m.total for ranks in sets for m in ranks)]) / size)
    axes[0].set_ylabel(unit, fontsize=8)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=5, fontsize=8, frameon=False
    )
    sentences = (_memory_sentence(ranks, title, bars) for ranks, title in zip(sets, titles, strict=True))
    return render(figure, "; ".join(sentences) + ".")


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
    titles = _titles(titles, len(histories))
    rows, columns = max(map(len, histories)), len(histories)
    figure = Figure(figsize=(12, 0.8 + max(2.0, 0.95 * rows)), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    every = [history for ranks in histories for history in ranks]
    unit, size = _unit(max(history.peak.bytes for history in every))
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
            axis.fill_between(times, base, top, step="post", color=colour, linewidth=0, label=_label(name))
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
    _bare(axis)


def plot_plans(
    plans: Mapping[str, tuple[Mapping[str, float], MemoryBreakdown]], capacity: float | None = None
) -> Picture:
    """Several plans, one row each: what a step's time goes into, and the memory of the heaviest rank.

    Args:
        plans: by name: seconds of each part of a step, and the memory.
        capacity: bytes of one device, drawn as a line.
    """
    from matplotlib.figure import Figure

    if not plans:
        raise ValueError("there is nothing to draw: give at least one plan")
    figure = Figure(figsize=(12, 1.3 + 0.42 * len(plans)), layout="constrained")
    time, memory = figure.subplots(1, 2, sharey=True)
    parts = list(dict.fromkeys(part for seconds, _ in plans.values() for part in seconds))
    colours = {part: PARTS[i % len(PARTS)] for i, part in enumerate(parts)}
    _bars(time, [seconds for seconds, _ in plans.values()], colours, "step, seconds")
    unit, size = _unit(max(breakdown.total for _, breakdown in plans.values()))
    scaled = [{name: getattr(b, name) / size for name in CATEGORIES} for _, b in plans.values()]
    _bars(memory, scaled, CATEGORIES, f"memory of a rank, {unit}")
    if capacity is not None:
        memory.axvline(capacity / size, color="#222222", linestyle="--", linewidth=1)
    time.set_yticks(range(len(plans)), list(plans))
    time.invert_yaxis()
    described = [
        f"{name} takes {sum(seconds.values()):.3g} s and {human(breakdown.total)}"
        for name, (seconds, breakdown) in plans.items()
    ]
    return render(figure, "; ".join(described) + ".")


def _bars(axis: Axes, rows: Sequence[Mapping[str, float]], colours: Mapping[str, str], title: str) -> None:
    base = [0.0] * len(rows)
    for name, colour in colours.items():
        lengths = [row.get(name, 0) for row in rows]
        axis.barh(range(len(rows)), lengths, left=base, color=colour, height=0.7, label=_label(name))
        base = [b + length for b, length in zip(base, lengths, strict=True)]
    for row, total in enumerate(base):
        axis.text(total, row, f" {total:.3g}", va="center", fontsize=8)
    axis.margins(x=0.12)
    axis.set_title(title, loc="left", fontsize=9)
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=4, fontsize=7, frameon=False)
    _bare(axis)


def _bare(axis: Axes) -> None:
    axis.tick_params(length=0, labelsize=8)
    axis.spines[["top", "right", "left"]].set_visible(False)


def _label(name: str) -> str:
    return name.replace("_", " ")


def _titles(titles: Sequence[str] | None, count: int) -> Sequence[str]:
    if titles is None:
        return [""] * count
    if len(titles) != count:
        raise ValueError(f"{count} drawings need as many titles, not {len(titles)}")
    return titles


def _unit(largest: float) -> tuple[str, float]:
    return next(((unit, size) for unit, size in UNITS.items() if largest >= size), ("bytes", 1.0))


def human(size: float) -> str:
    """``"12.3 GB"``: three digits, powers of ten."""
    unit, one = _unit(size)
    return f"{size / one:.3g} {unit}"


def _memory_sentence(ranks: Sequence[MemoryBreakdown], title: str, bars: Sequence[str] | None) -> str:
    subject = f"Memory of {title}" if title else "Memory"
    if bars is not None:
        held = ", ".join(f"{bar} {human(m.total)}" for bar, m in zip(bars, ranks, strict=True))
        return f"{subject}: {held}"
    heaviest = max(range(len(ranks)), key=lambda rank: ranks[rank].total)
    largest = max(CATEGORIES, key=lambda name: getattr(ranks[heaviest], name))
    most = human(ranks[heaviest].total)
    return f"{subject}: rank {heaviest} holds most, {most}, the largest part being {_label(largest)}"


def _history_sentence(ranks: Sequence[MemoryHistory], title: str) -> str:
    history = max(ranks, key=lambda h: h.peak.bytes)
    where = f" at {history.peak.action}" if history.peak.action else ""
    subject = f"Memory over time of {title}" if title else "Memory over time"
    return f"{subject}: rank {history.rank} peaks at {human(history.peak.bytes)}{where}"
