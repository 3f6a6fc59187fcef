"""Chapter 13's picture of a layer on two devices: what each computes, and where one waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from simulator.ledgers.timeline import Span, Timeline
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH
from simulator.plots.timeline import COLOURS, IDLE, INK, NUMBER, lightness

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = {
    "forward": COLOURS["forward"][0],
    "backward": COLOURS["backward"][0],
    "computing": COLOURS["forward + backward"][0],  # measured
    "messages": COLOURS["weight gradients"][0],  # as in the figure with the sliders
    "waiting": IDLE,
}
ROWS = ("A100", "V100")
PIECES = {
    "1": ("attention", 0.11),
    "3": ("MLP", 0.055),
}  # what block it is, and the share of a row that its name needs
MESSAGES = {
    "all-gather": "all-\ngather",
    "reduce-scatter": "reduce-\nscatter",
    "all-reduce": "norms",
}  # written upright
ROOM = {1: 0.02, 2: 0.038}  # lines of such a name -> the share of a row that it needs


def plot_shared_layer(
    timelines: Mapping[str, Timeline], alone: float | None = None, rows: tuple[str, str] = ROWS
) -> Picture:
    """Two rows for each timeline, each on an axis of its own, so that a slow link does not flatten the others.

    Args:
        timelines: title -> spans of ranks 0 and 1, in seconds. Titles say how long each is.
        alone: seconds of the fast device alone, a dashed line.
        rows: the names of both.

    Raises:
        ValueError: there is nothing to draw.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    if not timelines or not all(timeline.spans for timeline in timelines.values()):
        raise ValueError("there is nothing to draw: give at least one timeline, each with at least one span")
    figure = Figure(figsize=(WIDTH, 0.5 + 2.0 * len(timelines)), layout="constrained")
    for axis, (title, timeline) in zip(
        figure.subplots(len(timelines), squeeze=False)[:, 0], timelines.items(), strict=True
    ):
        longest = 1e3 * max(timeline.makespan, alone or 0)
        for rank in timeline.ranks:
            spans = timeline.of(rank)
            axis.barh(rank, 1e3 * max(s.end for s in spans), height=0.85, color=KINDS["waiting"])
            for span in spans:
                kind = _kind(span)
                start, wide = 1e3 * span.start, 1e3 * (span.end - span.start)
                axis.barh(rank, wide, left=start, height=0.85, color=KINDS[kind], edgecolor="white", lw=0.4)
                _write_name(axis, span, rank, longest, None if alone is None else 1e3 * alone)
        if alone is not None:
            axis.axvline(
                1e3 * alone, color="white", linewidth=1.5
            )  # between dashes, so that dark messages hide none
            axis.axvline(1e3 * alone, color=INK, linestyle="--", linewidth=1.5)
        axis.set_title(title, loc="left", fontsize=TITLE)
        axis.set(xlim=(0, 1.01 * longest), ylim=(1.5, -0.5))
        axis.set_yticks((0, 1), [f"{row}{_computes(timeline, rank)}" for rank, row in enumerate(rows)])
        axis.tick_params(length=0, labelsize=TEXT)
        axis.spines[:].set_visible(False)
    thin = any(
        span.name[-1] in "24" and _kind(span) != "messages" for t in timelines.values() for span in t.spans
    )
    thin_boxes = "thin boxes: residual sums, norms, and the norms' gradients; " if thin else ""
    axis.set_xlabel(f"{thin_boxes}time, milliseconds", fontsize=TEXT, loc="right")
    there = {_kind(span) for timeline in timelines.values() for span in timeline.spans}
    shown = [kind for kind in KINDS if kind in there or kind == "waiting"]
    figure.legend(
        handles=[Patch(color=KINDS[kind], label=kind) for kind in shown],
        loc="outside upper right", ncols=len(shown), fontsize=TEXT, frameon=False,
    )  # fmt: skip
    told = (
        f"{title}, of which {rows[0]} waits {1e3 * waiting(timeline):.4g} ms"
        for title, timeline in timelines.items()
    )
    return render(figure, "; ".join(told) + ".")


def _write_name(axis: Axes, span: Span, rank: int, longest: float, line: float | None) -> None:
    """The name of a block or of a message, where it fits into its box.

    Args:
        longest: milliseconds of a row.
        line: milliseconds of a dashed line. A name that it would cross stands on its wider side, if it fits there.
    """
    kind, start, end = _kind(span), 1e3 * span.start, 1e3 * span.end
    if kind == "messages":
        name, turned = MESSAGES.get(span.name.partition(" ")[0], ""), 90
        needed = ROOM[1 + name.count("\n")]
    else:
        (name, needed), turned = PIECES.get(span.name[-1], ("", 1.0)), 0
    if line is not None and abs(line - (start + end) / 2) < 0.025 * longest:
        start, end = max((start, line), (line, end), key=lambda side: side[1] - side[0])
    if not turned and name and end - start <= needed * longest:  # too narrow for it: written upright
        needed, turned = ROOM[1], 90
    if end - start > needed * longest:
        ink = INK if lightness(KINDS[kind]) > 0.5 else "white"
        how = {"ha": "center", "va": "center", "rotation": turned, "linespacing": 1.0}
        axis.text((start + end) / 2, rank, name, fontsize=NUMBER, color=ink, **how)


def _kind(span: Span) -> str:
    return "messages" if span.lane == "communication" else span.name.partition(" ")[0]


def _computes(timeline: Timeline, rank: int) -> str:
    """Of a measured timeline, how long a rank computes and waits: the boxes are too many to be added up by eye."""
    own = [span.end - span.start for span in timeline.of(rank) if _kind(span) == "computing"]
    return f"\ncomputes {sum(own):.2f} s\nwaits {timeline.makespan - sum(own):.2f} s" if own else ""


def waiting(timeline: Timeline) -> float:
    """Seconds in which rank 0 neither computes nor sends."""
    return timeline.makespan - sum(span.end - span.start for span in timeline.of(0))
