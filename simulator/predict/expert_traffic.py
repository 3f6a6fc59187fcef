"""What experts on ranks send in one layer, where it is known which rank sends how many tokens to which expert.

``expert_parallel_traffic`` in ``traffic.py`` prices the mean: routing in balance. Sources: arXiv:2006.16668.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from simulator.inputs.checks import amounts, at_least, index
from simulator.inputs.chunks import chunk_sizes
from simulator.inputs.plan import Plan
from simulator.ledgers.traffic import Traffic, TrafficRow


def per_rank(load: Sequence[float], ranks: int) -> list[float]:
    """The load of each expert, added up by rank: experts are dealt out in order, the first ranks may have one more.

    >>> per_rank([1, 2, 3, 4, 5], 2)
    [6, 9]
    """
    at_least(1, ranks=ranks)
    amounts(load=load)
    ends = accumulate(chunk_sizes(len(load), ranks), initial=0)
    return [sum(load[a:b]) for a, b in pairwise(ends)]


def copy_bytes(hidden: int, plan: Plan) -> int:
    """Of a token on its way to an expert: in 8 bits it has a scale of 4 bytes for every 128 numbers."""
    at_least(1, hidden=hidden)
    return hidden + 4 * -(-hidden // 128) if plan.dispatch == "fp8" else hidden * plan.itemsize


def routed_traffic(
    routed: Sequence[Sequence[int]],
    hidden: int,
    rank: int,
    itemsize: int = 2,
    *,
    there: int | None = None,
    recompute: bool = False,
) -> Traffic:
    """Forward and backward of one layer by all-to-all with unequal parts, exactly as ``rank`` sends it.

    Copies of tokens go to their experts and come back; backward their gradients do the same the other way. So that
    everyone knows how many will come, each rank first gathers how many copies the others send to each expert, in 8
    bytes each.

    Args:
        routed: the copies that each rank sends to each expert: p rows of E numbers.
        hidden: numbers in a token.
        there: bytes of a copy on its way to an expert; None: as on the way back.
        recompute: the layer's forward runs twice.
    """
    ranks = len(routed)
    at_least(1, hidden=hidden, itemsize=itemsize)
    index(ranks, rank=rank)
    for row in routed:
        amounts(routed=row)
    by_rank = [per_rank(row, ranks) for row in routed]
    goes, comes = by_rank[rank], [row[rank] for row in by_rank]
    if ranks == 1:
        return Traffic()
    forwards, back = 2 if recompute else 1, hidden * itemsize
    there = back if there is None else there
    at_least(1, there=there)
    payload = (forwards + 1) * (there * sum(goes) + back * sum(comes))
    counts = 8 * ranks * len(routed[0]) * forwards
    return Traffic(
        [
            TrafficRow("all-gather", ranks, forwards, counts, counts * (ranks - 1) // ranks),
            TrafficRow(
                "all-to-all",
                ranks,
                2 * forwards + 2,
                payload,
                payload - (forwards + 1) * (there + back) * goes[rank],
            ),
        ]
    )
