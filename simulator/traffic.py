"""The traffic ledger: which collectives ran, how often, and how many bytes each rank sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class TrafficRow:
    """All calls of one collective in groups of one size, seen from one rank.

    Args:
        collective: ``"all-reduce"``, ``"all-gather"``, ``"reduce-scatter"``, ``"broadcast"``, ``"reduce"``,
            ``"scatter"``, ``"gather"``, ``"all-to-all"``, ``"send"`` or ``"barrier"``.
        group_size: how many ranks took part (2 for a send).
        calls: how often it was called.
        payload: bytes of the tensors concerned, summed over the calls: the whole tensor, that is the
            *output* of an all-gather and the *input* of a reduce-scatter.
        sent: bytes this rank put on the wire.
    """

    collective: str
    group_size: int
    calls: int
    payload: float
    sent: float


@dataclass(frozen=True)
class Traffic:
    """What one rank communicated: rows with equal collective and group size are merged."""

    rows: tuple[TrafficRow, ...]

    def __init__(self, rows: Iterable[TrafficRow] = ()) -> None:
        merged: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0, 0, 0])
        for row in rows:
            total = merged[row.collective, row.group_size]
            total[0] += row.calls
            total[1] += row.payload
            total[2] += row.sent
        rows = tuple(TrafficRow(*key, *total) for key, total in sorted(merged.items()))
        object.__setattr__(self, "rows", rows)

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic((*self.rows, *other.rows))

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.rows)

    @property
    def sent(self) -> float:
        """Bytes this rank put on the wire, all collectives together."""
        return sum(row.sent for row in self.rows)

    def of(self, collective: str) -> Traffic:
        """The rows of one collective."""
        return Traffic(row for row in self.rows if row.collective == collective)


def chunk_sizes(elements: int, parts: int) -> list[int]:
    """How ``elements`` are dealt into ``parts``: as evenly as possible, the longer chunks first.

    >>> chunk_sizes(10, 4)
    [3, 3, 2, 2]
    """
    if parts < 1:
        raise ValueError(f"parts must be at least 1, not {parts}")
    if elements < 0:
        raise ValueError(f"elements must not be negative, not {elements}")
    short, longer = divmod(elements, parts)
    return [short + 1] * longer + [short] * (parts - longer)


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
    p = group_size
    if p < 1:
        raise ValueError(f"a group has at least 1 rank, not {p}")
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
    """Rank r ends with chunk r, so every chunk but its own passes through its hands: n - c[r]."""
    return itemsize * (elements - _chunk(elements, ranks, rank))


def ring_all_gather_sent(elements: int, itemsize: int, ranks: int, rank: int) -> int:
    """Chunks travel from r to r + 1; the one rank r need not pass on is its neighbour's own: n - c[r + 1]."""
    return itemsize * (elements - _chunk(elements, ranks, (rank + 1) % ranks))


def ring_all_reduce_sent(elements: int, itemsize: int, ranks: int, rank: int) -> int:
    """A reduce-scatter, then an all-gather of its result."""
    scattered = ring_reduce_scatter_sent(elements, itemsize, ranks, rank)
    return scattered + ring_all_gather_sent(elements, itemsize, ranks, rank)


def tree_broadcast_sent(elements: int, itemsize: int, ranks: int, rank: int, root: int = 0) -> int:
    """In a binomial tree, a rank sends the whole tensor once to each of its children."""
    return itemsize * elements * tree_children(ranks, (rank - root) % ranks)


def tree_reduce_sent(elements: int, itemsize: int, ranks: int, rank: int, root: int = 0) -> int:
    """The broadcast backwards: every rank but the root sends its partial sum once."""
    _chunk(elements, ranks, rank)
    return 0 if rank == root else itemsize * elements


def tree_all_reduce_sent(elements: int, itemsize: int, ranks: int, rank: int) -> int:
    """Reduce to rank 0, then broadcast from it."""
    down = tree_broadcast_sent(elements, itemsize, ranks, rank)
    return tree_reduce_sent(elements, itemsize, ranks, rank) + down


def naive_all_reduce_sent(elements: int, itemsize: int, ranks: int, rank: int) -> int:
    """Everyone sends everything to rank 0, which adds up and sends the sum back to everyone."""
    _chunk(elements, ranks, rank)
    return itemsize * elements * (ranks - 1 if rank == 0 else 1) if ranks > 1 else 0


def scatter_sent(elements: int, itemsize: int, ranks: int, rank: int, root: int = 0) -> int:
    """The root sends every chunk but its own; nobody else sends."""
    return itemsize * (elements - _chunk(elements, ranks, rank)) if rank == root else 0


def gather_sent(elements: int, itemsize: int, ranks: int, rank: int, root: int = 0) -> int:
    """Everyone but the root sends its chunk."""
    return 0 if rank == root else itemsize * _chunk(elements, ranks, rank)


def all_to_all_sent(elements: int, itemsize: int, ranks: int, rank: int) -> int:
    """Rank r holds n elements, chunk j of them for rank j: it keeps chunk r."""
    return ring_reduce_scatter_sent(elements, itemsize, ranks, rank)


def tree_children(ranks: int, rank: int) -> int:
    """How many children a rank has in the binomial tree rooted at 0.

    Rank r was reached in the round of its highest set bit; it sends in every later round in which
    r + 2^round still is a rank.

    >>> [tree_children(6, rank) for rank in range(6)]
    [3, 2, 0, 0, 0, 0]
    """
    rounds = range(rank.bit_length(), ranks.bit_length())
    return sum(rank + 2**step < ranks for step in rounds)


def _chunk(elements: int, ranks: int, rank: int) -> int:
    if not 0 <= rank < ranks:
        raise ValueError(f"rank must be between 0 and {ranks - 1}, not {rank}")
    return chunk_sizes(elements, ranks)[rank]
