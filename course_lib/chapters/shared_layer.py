"""Chapter 13's picture of a layer on two laptops: what each computes, what they send, and where one waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from simulator.ledgers.timeline import Span, Timeline
from simulator.planner.layer_split import LayerSplit
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
ROWS = ("your laptop", "the old laptop")
PIECES = {
    "1": ("attention", 0.11),
    "3": ("MLP", 0.055),
}  # what block it is, and the share of a row that its name needs
MESSAGES = {
    "all-gather": ("all-\ngather", 0.1, 0),
    "reduce-scatter": ("reduce-\nscatter", 0.1, 0),
    "all-reduce": ("norms", 0.02, 90),
}  # the same, and how it is turned: upright, a name needs less
HAS = {"heads": "attention", "columns": "MLP", "tokens": "norms"}  # what is dealt, and where
LAPTOPS = ("#e6d9bd", "#b9975f")  # other colours than the times of KINDS


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
    figure = Figure(figsize=(WIDTH, 0.5 + 1.4 * len(timelines)), layout="constrained")
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
                _write_name(axis, span, rank, longest)
        if alone is not None:
            axis.axvline(
                1e3 * alone, color="white", linewidth=1.5
            )  # between dashes, so that dark messages hide none
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


def _write_name(axis: Axes, span: Span, rank: int, longest: float) -> None:
    """The name of a block or of a message, where it fits into its box. ``longest``: milliseconds of a row."""
    kind, wide = _kind(span), 1e3 * (span.end - span.start)
    nothing = ("", 1.0, 0)
    if kind == "messages":
        name, needed, turned = MESSAGES.get(span.name.partition(" ")[0], nothing)
    else:
        name, needed, turned = (*PIECES.get(span.name[-1], nothing[:2]), 0)
    if wide > needed * longest:
        ink = INK if lightness(KINDS[kind]) > 0.5 else "white"
        middle, how = 1e3 * span.start + wide / 2, {"ha": "center", "va": "center", "rotation": turned}
        axis.text(middle, rank, name, fontsize=NUMBER, color=ink, **how)


def plot_deal(split: LayerSplit) -> Picture:
    """What each of two laptops has of a layer, and how long that takes it; below, what both wait for.

    Args:
        split: of the placement ``"galaxy"``: by heads, columns and, in the connections, by tokens.
    """
    from matplotlib.figure import Figure

    work = split.compute
    connections = [sum(both) for both in zip(work["connection_1"], work["connection_2"], strict=True)]
    seconds = {"heads": work["attention"], "columns": work["mlp"], "tokens": connections}
    figure = Figure(figsize=(WIDTH, 2), layout="constrained")
    axis, told = figure.subplots(), []
    for row, (what, block) in enumerate(HAS.items()):
        own, left = split.shares["sequence" if what == "tokens" else what], 0.0
        for n, colour, took in zip(own, LAPTOPS, seconds[what], strict=True):
            share, says = n / sum(own), f"{n:,} {what}: {1e3 * took:.1f} ms"
            axis.barh(row, share, left=left, height=0.85, color=colour, edgecolor="white")
            ink = INK if lightness(colour) > 0.5 else "white"
            axis.text(left + share / 2, row, says, ha="center", va="center", fontsize=NUMBER, color=ink)
            told.append(f"{block} {says}")
            left += share
    axis.set_yticks(range(len(HAS)), list(HAS.values()))
    axis.set(xlim=(0, 1), ylim=(len(HAS) - 0.5, -0.5))
    axis.set_xticks([])
    axis.tick_params(length=0, labelsize=TEXT)
    axis.spines[:].set_visible(False)
    for laptop, place, side in zip(ROWS, (0.0, 1.0), ("left", "right"), strict=True):
        axis.text(place, -0.6, laptop, ha=side, va="bottom", fontsize=TITLE)
    slower = [max(both) for both in seconds.values()]
    added = " + ".join(f"{1e3 * s:.1f}" for s in slower)
    says = f"each waits for the slower: {added} = {1e3 * sum(slower):.1f} ms"
    axis.set_xlabel(says, fontsize=TEXT, loc="right")
    return render(figure, f"{', '.join(told)}; {says}.")


def _kind(span: Span) -> str:
    return "messages" if span.lane == "communication" else span.name.partition(" ")[0]


def _computes(timeline: Timeline, rank: int) -> str:
    """Of a measured timeline, how long a rank computes: the boxes are too many to be added up by eye."""
    own = [span.end - span.start for span in timeline.of(rank) if _kind(span) == "computing"]
    return f"\ncomputes {sum(own):.2f} s" if own else ""


def waiting(timeline: Timeline) -> float:
    """Seconds in which rank 0 neither computes nor sends."""
    return timeline.makespan - sum(span.end - span.start for span in timeline.of(0))
