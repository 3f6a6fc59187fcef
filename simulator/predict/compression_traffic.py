"""What one rank sends in one training step when gradients are compressed or averaging is relaxed: closed forms.

``sizes`` are the elements of each bucket, because every bucket is compressed and sent by itself. All forms are exact
to the byte. The methods are those of ``course_lib.compression``, where the papers are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from simulator.inputs.checks import amounts, at_least, index
from simulator.inputs.compression import fragment_steps, kept, low_rank
from simulator.inputs.mixing import Matrix, check_matrix
from simulator.ledgers.traffic import Traffic, TrafficRow
from simulator.predict.collective_traffic import sent_bytes
from simulator.predict.traffic import calls

MIN_MAX_HEADER = 8  # bytes before the codes of a row: its smallest and its largest element in fp32
SIGNS_HEADER = 4  # one scale in fp32


def bytegrad_traffic(sizes: Sequence[int], ranks: int) -> Traffic:
    """8 bits an element: a bucket of n elements is cut into p rows of ceil(n/p), and a row takes 8 + ceil(n/p) bytes.

    Each rank sends p - 1 rows to the ranks that add them up, and its row of sums to the p - 1 other ranks:
    2 (p - 1) (8 + ceil(n/p)) bytes.
    """
    _check(sizes, ranks)
    return _row_by_row([MIN_MAX_HEADER + ceil(size / ranks) for size in sizes], ranks)


def one_bit_traffic(sizes: Sequence[int], ranks: int) -> Traffic:
    """1 bit an element, in the same two messages: 2 (p - 1) (4 + ceil(ceil(n/p) / 8)) bytes for a bucket."""
    _check(sizes, ranks)
    return _row_by_row([SIGNS_HEADER + ceil(ceil(size / ranks) / 8) for size in sizes], ranks)


def top_k_traffic(sizes: Sequence[int], ranks: int, density: float, itemsize: int = 4) -> Traffic:
    """Each rank gathers the k places (4 bytes each) and values of all: (p - 1) k (4 + itemsize) bytes for a bucket."""
    _check(sizes, ranks)
    at_least(1, itemsize=itemsize)
    counts = [ranks * kept(density, size) for size in sizes]
    return calls("all-gather", counts, 4, ranks) + calls("all-gather", counts, itemsize, ranks)


def random_k_traffic(
    sizes: Sequence[int], ranks: int, density: float, itemsize: int = 4, rank: int | None = None
) -> Traffic:
    """An all-reduce of the k values: 2 (p - 1)/p k itemsize bytes for a bucket.

    With ``rank``: the exact bytes of that rank in a ring, where k is not divided by p.
    """
    _check(sizes, ranks)
    return calls("all-reduce", [kept(density, size) for size in sizes], itemsize, ranks, rank)


def power_sgd_traffic(
    buckets: Sequence[Sequence[Sequence[int]]],
    ranks: int,
    matrix_rank: int = 1,
    itemsize: int = 4,
    min_compression: float = 2,
    rank: int | None = None,
) -> Traffic:
    """Three all-reduces for a bucket: of what is not compressed, of all P ((n r) each), and of all Q ((m r) each).

    Args:
        buckets: the shapes of the gradients in each bucket, such as ``[[(10, 64), (10,)]]``.
        rank: as in ``random_k_traffic``.
    """
    sizes = []
    for shapes in buckets:
        thin = [(shape, low_rank(shape, matrix_rank, min_compression)) for shape in shapes]
        others = sum(prod(shape) for shape, r in thin if not r)
        ps = sum(shape[0] * r for shape, r in thin)
        qs = sum(prod(shape[1:]) * r for shape, r in thin if r)
        sizes += [size for size in (others, ps, qs) if size]
    return calls("all-reduce", sizes, itemsize, ranks, rank)


def decentralised_traffic(sizes: Sequence[int], matrix: Matrix, rank: int, itemsize: int = 4) -> Traffic:
    """The weights of every bucket, once to each neighbour: as many messages as W has other entries in this column."""
    at_least(1, itemsize=itemsize)
    return _to_neighbours(sizes, matrix, rank, itemsize, header=0)


def low_precision_decentralised_traffic(sizes: Sequence[int], matrix: Matrix, rank: int) -> Traffic:
    """The change of the weights in 8 bits, once to each neighbour: 8 + n bytes a message."""
    return _to_neighbours(sizes, matrix, rank, itemsize=1, header=MIN_MAX_HEADER)


def averaging_traffic(
    fragments: Sequence[int],
    ranks: int,
    every: int,
    steps: int,
    itemsize: int = 4,
    rank: int | None = None,
) -> Traffic:
    """Local SGD and DiLoCo in ``steps`` steps: each fragment of the weights is all-reduced once in ``every`` steps.

    Args:
        fragments: elements of each; ``[elements]`` where the weights are averaged all at once.
    """
    _check(fragments, ranks)
    at_least(1, every=every)
    at_least(0, steps=steps)
    due = fragment_steps(every, len(fragments))
    times = [(steps - first) // every + 1 if steps >= first else 0 for first in due]
    total = Traffic()
    for size, count in zip(fragments, times, strict=True):
        total += calls("all-reduce", [size], itemsize, ranks, rank, count)
    return total


def _check(sizes: Sequence[int], ranks: int) -> None:
    amounts(sizes=sizes)
    at_least(1, ranks=ranks, **{f"bucket_{i}": size for i, size in enumerate(sizes)})


def _row_by_row(row_bytes: Sequence[int], ranks: int) -> Traffic:
    """Each row to the rank that adds it up, by an all-to-all of p rows, and the sums to all, by an all-gather."""
    rows = []
    for size in row_bytes if ranks > 1 else ():
        for collective in ("all-to-all", "all-gather"):
            payload = ranks * size
            rows.append(TrafficRow(collective, ranks, 1, payload, sent_bytes(collective, payload, ranks)))
    return Traffic(rows)


def _to_neighbours(sizes: Sequence[int], matrix: Matrix, rank: int, itemsize: int, header: int) -> Traffic:
    check_matrix(matrix)
    index(len(matrix), rank=rank)
    _check(sizes, len(matrix))
    neighbours = sum(row[rank] != 0 for i, row in enumerate(matrix) if i != rank)
    size = neighbours * sum(header + itemsize * elements for elements in sizes)
    return Traffic([TrafficRow("send", 2, neighbours * len(sizes), size, size)] if size else [])
