"""A reduce-scatter that the learner changes, on four ranks: its rounds, what a rank returns, and what it sent."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from course_lib.observe.ledgers.messages import Trace, read_label, trace_collective
from course_lib.observe.show.collectives import plot_rounds
from course_lib.observe.show.shown import Shown, headed
from course_lib.observe.show.tables import table
from course_lib.runtime import RankError

RANKS = 4
LETTERS = "abcd"


def try_ring(reduce_scatter: Callable[[Tensor], Tensor]) -> Shown:
    """Run it on four ranks; rank r should return the sum of chunk r.

    An error on a rank, and chunks that are mixed up, are said in a sentence.
    """
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
    verdict = (
        "Right: each rank returns its whole sum."
        if right
        else "Not yet: what a rank returns lacks parts of others."
    )
    return headed(verdict, rounds, found)


def _returned(trace: Trace, rank: int) -> str:
    (value,) = trace.after[rank]
    chunk, parts = read_label(value, RANKS)
    return f"{LETTERS[chunk]}: {' '.join(map(str, sorted(parts)))}"
