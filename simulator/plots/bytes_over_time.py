"""The drawing of bytes over time: one row a rank, stacked by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simulator.inputs.checks import positive
from simulator.ledgers.memory import MemoryHistory
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
    from matplotlib.axes import Axes


def plot_bytes_over_time(
    *histories: Sequence[MemoryHistory],
    titles: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    unit: str = "",
    capacity: float | None = None,
    device: str = "",
    marks: Mapping[float, str] | None = None,
    backward: Sequence[Sequence[float]] | None = None,
    names: Mapping[str, str] | None = None,
    top: float | None = None,
    alt: str | None = None,
) -> Picture:
    """Bytes alive on every rank over time, stacked by category, with the peak: one row a rank.

    Two of them stand beside each other, more stand one below the other; all are drawn to one scale.

    Args:
        histories: for each drawing, the ranks' histories, such as ``replay`` returns.
        titles: one for each.
        rows: the names of the rows, where they are not ranks.
        unit: of the time axis, such as ``"seconds"``; without it the axis has no numbers.
        capacity: bytes of one device, drawn as a line.
        device: its name, written beside the line: ``"one A100"``.
        marks: times at which a dotted line is drawn, with what ended there.
        backward: for each history, when backward begins; forward and backward are named under the axis, and the
            ends of both are marked.
        names: what the legend calls a category, where it is not its own name: ``{"buffers": "temporary tensors"}``.
        top: bytes at which the axis ends, so that two pictures can be compared; by default it leaves room above the
            highest peak.
        alt: the sentence that says what is seen; by default one with the peaks, on which two machines need not
            agree where they were measured.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if not histories or not all(histories):
        raise ValueError("there is nothing to draw: give at least one list of histories")
    positive(**{name: x for name, x in {"capacity": capacity, "top": top}.items() if x is not None})
    for name in names or ():
        if name not in CATEGORIES:
            raise ValueError(
                f"names gives another name to {name!r}; the categories are {', '.join(CATEGORIES)}"
            )
    titles = titles_for(titles, len(histories))
    ranks, columns = max(map(len, histories)), 1 if len(histories) != 2 else 2
    lines = ranks * (len(histories) // columns)
    figure = Figure(
        figsize=(WIDTH, 0.8 + max(2.0, (0.95 if ranks > 1 else 1.5) * lines)), layout="constrained"
    )
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    every = [history for held in histories for history in held]
    peak = max(history.peak.bytes for history in every)
    bytes_unit, size = unit_of(max(peak, capacity or 0))
    for i, (held, title) in enumerate(zip(histories, titles, strict=True)):
        block = axes[:, i] if columns == 2 else axes[i * ranks : (i + 1) * ranks, 0]
        block[0].set_title(title, loc="left", fontsize=TITLE)
        for row, (history, axis) in enumerate(zip(held, block, strict=False)):
            _stack(axis, history, size)
            if ranks > 1 and (rows is None or i == 0 or columns == 1):
                name = rows[row] if rows else f"rank {history.rank}"
                axis.set_ylabel(name, fontsize=TEXT, rotation=0, ha="right", va="center")
            if backward is not None:
                _phases(axis, history, backward[i][row], named=row == len(held) - 1)
            if capacity is not None:
                axis.axhline(capacity / size, color="#222222", linestyle="--", linewidth=1)
        for axis in block[len(held) :]:
            axis.set_visible(False)
    first = axes[0, 0]
    first.set_ylim(0, (top or max(1.3 * peak, 1.25 * (capacity or 0))) / size)
    first.yaxis.set_major_locator(MaxNLocator(3 if lines > 1 else 5, steps=[1, 2, 5, 10]))
    first.yaxis.set_major_formatter(FuncFormatter(ticks_in(bytes_unit)))
    for axis in axes.flat:
        for moment in marks or ():
            axis.axvline(moment, color="#222222", linestyle=":", linewidth=1)
    for moment, what in (marks or {}).items():
        first.annotate(
            what,
            (moment, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=TEXT,
        )
    if capacity is not None:
        label_capacity(axes[0, -1], capacity, size, device)
    for axis in axes[-1]:
        below = None if backward is None else 1.5 * TEXT  # the names of the phases stand between
        axis.set_xlabel(f"time, {unit}" if unit else "time", fontsize=TEXT, loc="right", labelpad=below)
        if not unit:
            axis.set_xticks([])
    drawn = {}
    for axis in axes.flat:
        drawn |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    shown = [name for name in CATEGORIES if label_of(name) in drawn]
    figure.legend(
        [drawn[label_of(name)] for name in shown],
        [(names or {}).get(name, label_of(name)) for name in shown],
        loc="outside upper right",
        ncols=5,
        fontsize=TEXT,
        frameon=False,
        columnspacing=1.2,
        handlelength=1.4,
    )
    if capacity is not None:
        peaks = [axis.texts[0] for axis in axes.flat if axis.texts]  # the first label is the peak's
        move_behind_line(figure, peaks, capacity / size, "y")
    return render(figure, alt or "; ".join(map(history_sentence, histories, titles)) + ".")


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
        fontsize=TEXT,
    )
    bare(axis)


def _phases(axis: Axes, history: MemoryHistory, middle: float, named: bool) -> None:
    begin, end = history.times[0], history.end
    for time in (middle, end):
        axis.axvline(time, color="#777777", linewidth=0.8, linestyle=":")
    for name, time in (("forward", (begin + middle) / 2), ("backward", (middle + end) / 2)) if named else ():
        axis.annotate(
            name,
            (time, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -3),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=TEXT,
            annotation_clip=False,
        )


def history_sentence(ranks: Sequence[MemoryHistory], title: str) -> str:
    history = max(ranks, key=lambda h: h.peak.bytes)
    where = f" at {history.peak.action}" if history.peak.action else ""
    subject = f"Memory over time of {title}" if title else "Memory over time"
    return f"{subject}: rank {history.rank} peaks at {human(history.peak.bytes)}{where}"
