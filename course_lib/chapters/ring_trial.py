"""A ring all-reduce that the learner writes, on four ranks: its rounds, what ranks return, and what they sent."""

from __future__ import annotations

from types import FunctionType

from course_lib.observe.ledgers.messages import Trace, labels, read_label, trace_collective
from course_lib.observe.show.collectives import plot_rounds
from course_lib.observe.show.shown import Shown, headed
from course_lib.runtime import RankError

RANKS = 4


def try_ring(all_reduce: FunctionType) -> Shown:
    """Run it on four ranks; every rank should return the whole sum.

    Dots that are still there, an error on a rank, and the round from which on chunks are mixed up are said in a
    sentence; the rounds before are drawn.
    """
    if Ellipsis in all_reduce.__code__.co_consts:
        return headed("Not written yet: put your expressions in place of the dots.")
    try:
        trace = trace_collective(all_reduce, RANKS)
    except RankError as error:
        return headed(str(error).splitlines()[0])
    wrong = _first_mixed(trace)
    shown = Trace(trace.before, trace.after, [m for m in trace.messages if not wrong or m.round < wrong])
    drawn = [plot_rounds(shown, "A ring all-reduce")] if shown.messages else []
    if wrong:
        return headed(
            f"Not yet: what a rank sends in round {wrong} is no sum of one chunk. Two chunks were added up, or a part "
            "was added twice.",
            *drawn,
        )
    whole = tuple(
        sum(values) for values in zip(*(labels(r, RANKS).tolist() for r in range(RANKS)), strict=True)
    )
    lacks = [rank for rank, values in enumerate(trace.after) if values != whole]
    most = max(sum(len(m.values) for m in trace.messages if m.sender == rank) for rank in range(RANKS))
    needed = 2 * (RANKS - 1)
    verdict = f"Right: each rank returns the whole sum, and sends {most} chunks."
    if most > needed:
        verdict = f"The sums are right, but a rank sends {most} chunks where {needed} are enough."
    if lacks:
        verdict = f"Not yet: what rank {lacks[0]} returns is not the whole sum."
    return headed(verdict, *drawn)


def _first_mixed(trace: Trace) -> int:
    """The first round in which a message is no sum of parts of one chunk; 0 if there is none."""
    for message in sorted(trace.messages, key=lambda message: message.round):
        try:
            for value in message.values:
                read_label(value, RANKS)
        except ValueError:
            return message.round
    return 0
