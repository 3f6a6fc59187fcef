"""How many bytes a rank sends in one collective: the mean over the group, and the exact number of every rank."""

from __future__ import annotations

from simulator.inputs.checks import at_least, index, not_negative
from simulator.inputs.chunks import chunk_sizes


def sent_bytes(collective: str, payload: float, group_size: int) -> float:
    """Bytes one rank sends, as the mean over the group, by the standard bandwidth-optimal algorithm.

    Args:
        collective: a name of ``TrafficRow``.
        payload: n, bytes of the whole tensor (output of an all-gather, input of a reduce-scatter; of a scatter
            and a gather what the root holds; of an all-to-all what one rank holds).
        group_size: p.

    A ring all-reduce sends 2 (p-1)/p n, its two halves (p-1)/p n each (Patarasuk and Yuan, 2009). A broadcast
    or a reduce is p-1 messages of n in all, whatever the tree.
    """
    at_least(1, group_size=group_size)
    not_negative(payload=payload)
    p = group_size
    share = payload * (p - 1) / p
    formulas = {
        "all-reduce": 2 * share,
        "all-gather": share,
        "reduce-scatter": share,
        "all-to-all": share,
        "broadcast": share,
        "reduce": share,
        "scatter": share / p,
        "gather": share / p,
        "send": payload,
        "barrier": 0,
    }
    if collective not in formulas:
        raise ValueError(f"collective must be one of {', '.join(formulas)}, not {collective}")
    return formulas[collective]


# The exact bytes of one rank, for the collectives of course_lib.runtime.collectives. A tensor dealt out by rows
# counts its rows as elements, and the bytes of one row as itemsize.


def ring_reduce_scatter_sent(elements: int, itemsize: int, ranks: int, rank: int) -> int:
    """Rank r ends with chunk r, so it sends every chunk but its own: n - c[r] elements."""
    _check(elements, itemsize, ranks, rank)
    return itemsize * (elements - _chunk(elements, ranks, rank))


def ring_all_gather_sent(elements: int, itemsize: int, ranks: int, rank: int) -> int:
    """Chunks travel from r to r + 1; the one rank r need not pass on is its neighbour's own: n - c[r + 1]."""
    _check(elements, itemsize, ranks, rank)
    return itemsize * (elements - _chunk(elements, ranks, (rank + 1) % ranks))


def ring_all_reduce_sent(elements: int, itemsize: int, ranks: int, rank: int) -> int:
    """A reduce-scatter, then an all-gather of its result."""
    _check(elements, itemsize, ranks, rank)
    scattered = ring_reduce_scatter_sent(elements, itemsize, ranks, rank)
    return scattered + ring_all_gather_sent(elements, itemsize, ranks, rank)


def _check(elements: int, itemsize: int, ranks: int, rank: int) -> None:
    at_least(0, elements=elements)
    at_least(1, itemsize=itemsize, ranks=ranks)
    index(ranks, rank=rank)


def _chunk(elements: int, ranks: int, rank: int) -> int:
    return chunk_sizes(elements, ranks)[rank]
