"""Chapter 13's picture of a layer on two laptops: what each computes, what they send, and where one waits."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.ledgers.timeline import Span, Timeline
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH
from simulator.plots.timeline import COLOURS, IDLE, INK, NUMBER, lightness

KINDS = {
    "forward": COLOURS["forward"][0],
    "backward": COLOURS["backward"][0],
    "computing": COLOURS["forward + backward"][0],  # measured
    "messages": COLOURS["weight gradients"][0],  # as in the figure with the sliders
    "waiting": IDLE,
}
ROWS = ("your laptop", "the old laptop")
PIECES = {
    "1": ("attention", 0.11),
    "3": ("MLP", 0.055),
}  # what block it is, and the share of a row that its name needs


def plot_shared_layer(timelines: Mapping[str, Timeline], alone: float | None = None) -> Picture:
    """Two rows for each timeline, each on an axis of its own, so that a slow link does not flatten the others.

    Args:
        timelines: title -> spans of ranks 0 and 1, in seconds. Titles say how long each is.
        alone: seconds of one laptop alone, a dashed line.

    Raises:
        ValueError: there is nothing to draw.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    if not timelines or not all(timeline.spans for timeline in timelines.values()):
        raise ValueError("there is nothing to draw: give at least one timeline, each with at least one span")
    figure = Figure(figsize=(WIDTH, 0.5 + 1.25 * len(timelines)), layout="constrained")
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
                piece, needed = PIECES.get(span.name[-1], ("", 1.0))
                if kind != "messages" and wide > needed * longest:
                    ink = INK if lightness(KINDS[kind]) > 0.5 else "white"
                    axis.text(
                        start + wide / 2,
                        rank,
                        piece,
                        ha="center",
                        va="center",
                        fontsize=NUMBER,
                        color=ink,
                    )
        if alone is not None:
            axis.axvline(1e3 * alone, color="white", linewidth=4)  # so that dark messages hide no dash
            axis.axvline(1e3 * alone, color=INK, linestyle="--", linewidth=1.5)
        axis.set_title(title, loc="left", fontsize=TITLE)
        axis.set(xlim=(0, 1.01 * longest), ylim=(1.5, -0.5))
        axis.set_yticks((0, 1), [f"{row}{_computes(timeline, rank)}" for rank, row in enumerate(ROWS)])
        axis.tick_params(length=0, labelsize=TEXT)
        axis.spines[:].set_visible(False)
    axis.set_xlabel("time, milliseconds", fontsize=TEXT, loc="right")
    there = {_kind(span) for timeline in timelines.values() for span in timeline.spans}
    shown = [kind for kind in KINDS if kind in there or kind == "waiting"]
    figure.legend(
        handles=[Patch(color=KINDS[kind], label=kind) for kind in shown],
        loc="outside upper right", ncols=len(shown), fontsize=TEXT, frameon=False,
    )  # fmt: skip
    told = (
        f"{title}, of which your laptop waits {1e3 * waiting(timeline):.0f} ms"
        for title, timeline in timelines.items()
    )
    return render(figure, "; ".join(told) + ".")


def _kind(span: Span) -> str:
    return "messages" if span.lane == "communication" else span.name.partition(" ")[0]


def _computes(timeline: Timeline, rank: int) -> str:
    """Of a measured timeline, how long a rank computes: the boxes are too many to be added up by eye."""
    own = [span.end - span.start for span in timeline.of(rank) if _kind(span) == "computing"]
    return f"\ncomputes {sum(own):.2f} s" if own else ""


def waiting(timeline: Timeline) -> float:
    """Seconds in which rank 0 neither computes nor sends."""
    return timeline.makespan - sum(span.end - span.start for span in timeline.of(0))
