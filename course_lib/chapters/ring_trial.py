"""A reduce-scatter that the learner changes, on four ranks: its rounds, what a rank returns, and what it sent."""

from __future__ import annotations

from types import FunctionType

from course_lib.observe.ledgers.messages import Trace, read_label, trace_collective
from course_lib.observe.show.collectives import plot_rounds
from course_lib.observe.show.shown import Shown, headed
from course_lib.observe.show.tables import table
from course_lib.runtime import RankError

RANKS = 4
LETTERS = "abcd"


def try_ring(reduce_scatter: FunctionType) -> Shown:
    """Run it on four ranks; rank r should return the sum of chunk r.

    Three dots that are still there, an error on a rank, and chunks that are mixed up are said in a sentence.
    """
    if Ellipsis in reduce_scatter.__code__.co_consts:
        return headed("Not written yet: put your expressions in place of the three dots.")
    try:
        trace = trace_collective(reduce_scatter, RANKS)
    except RankError as error:
        return headed(str(error).splitlines()[0])
    try:
        rounds = plot_rounds(trace, "A ring's reduce-scatter")
        returned = [_returned(trace, rank) for rank in range(RANKS)]
    except ValueError:
        return headed("A rank returned no whole chunk, or added one chunk to another.")
    right = all(label == f"{LETTERS[rank]}: 0 1 2 3" for rank, label in enumerate(returned))
    rows = [
        [f"rank {rank}", label, sum(len(m.values) for m in trace.messages if m.sender == rank)]
        for rank, label in enumerate(returned)
    ]
    found = table(["", "returns chunk: parts of ranks", "chunks sent"], rows)
    most = max(row[-1] for row in rows)
    verdict = f"Right: each rank returns its whole sum, and sends {most} chunks."
    if most >= RANKS:
        verdict = f"The sums are right, but a rank sends {most} chunks where {RANKS - 1} are enough."
    if not right:
        verdict = "Not yet: what a rank returns lacks parts of others."
    return headed(verdict, rounds, found)


def _returned(trace: Trace, rank: int) -> str:
    (value,) = trace.after[rank]
    chunk, parts = read_label(value, RANKS)
    return f"{LETTERS[chunk]}: {' '.join(map(str, sorted(parts)))}"
