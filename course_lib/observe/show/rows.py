"""Timelines made ready to be drawn: one rank with a row for every kind of message, or all ranks without messages."""

from __future__ import annotations

from simulator.ledgers.timeline import Timeline

ROWS = {"all-gather": "gather", "reduce-scatter": "reduce"}


def rows_of_rank(timeline: Timeline, rank: int = 0) -> Timeline:
    """The spans of one rank in milliseconds: all-gathers and reduce-scatters in two rows, so that none hides another.

    Blocks are named ``block 0`` where the model says ``blocks.0``, so that a drawing shows their number.

    Raises:
        ValueError: the timeline has no span of that rank.
    """
    if not (spans := timeline.of(rank)):
        raise ValueError(f"rank {rank} is not in the timeline; its ranks are {timeline.ranks}")
    return Timeline(
        span._replace(
            lane=ROWS.get(span.name.split()[0], span.lane),
            name=span.name.replace("blocks.", "block "),
            start=1e3 * (span.start - timeline.start),
            end=1e3 * (span.end - timeline.start),
        )
        for span in spans
    )


def compute_rows(timeline: Timeline) -> Timeline:
    """What every rank computed, in milliseconds from the first start, without its messages."""
    spans = timeline.of(lane="compute")
    zero = min((span.start for span in spans), default=0.0)
    return Timeline(
        span._replace(start=1e3 * (span.start - zero), end=1e3 * (span.end - zero)) for span in spans
    )
