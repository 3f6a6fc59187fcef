"""Muon where ranks hold shards: who turns which matrix, what that sends, and how long it takes.

A matrix is turned whole. Its owner gets the others' parts of the update, and sends the turned parts back: one message a
matrix each way, all of them in two all-to-alls (owner computes; arXiv:2502.16982 gathers on all ranks instead).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod

from simulator.inputs.checks import at_least, index, not_negative
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.ledgers.traffic import Traffic, TrafficRow
from simulator.predict.collective_time import collective_seconds
from simulator.predict.kernel_time import matmul_seconds

STEPS = 5  # of Newton and Schulz


def elements_on(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """Of tensors end to end in one flat buffer that is dealt out in equal shards: the elements on each rank.

    >>> elements_on([6, 3], 2)
    [[5, 1], [0, 3]]
    """
    at_least(1, ranks=ranks)
    for size in sizes:
        at_least(0, sizes=size)
    shard = -(-sum(sizes) // ranks)
    edges = [shard * rank for rank in range(ranks)] + [sum(sizes)]
    ends = accumulate(sizes, initial=0)
    return [[max(0, min(high, b) - max(low, a)) for a, b in pairwise(edges)] for low, high in pairwise(ends)]


def matrix_owners(shapes: Sequence[Sequence[int]], held: Sequence[Sequence[int]]) -> list[int]:
    """The owner of each matrix, largest first, each time to the rank with the least to do. Of matrices that are equally
    much work the rank takes the one of which it holds the most.

    Args:
        shapes: rows and columns of each; its work grows with the smaller one times both.
        held: for each, the elements on every rank.
    """
    for (rows, columns), parts in zip(shapes, held, strict=True):
        at_least(1, rows=rows, columns=columns)
        for part in parts:
            at_least(0, held=part)
    work = [min(shape) * shape[0] * shape[1] for shape in shapes]
    left: dict[int, list[int]] = {}
    for matrix, amount in enumerate(work):
        left.setdefault(amount, []).append(matrix)
    owners, load = [0] * len(shapes), [0] * (len(held[0]) if held else 0)
    for amount, alike in sorted(left.items(), reverse=True):
        while alike:
            rank = load.index(min(load))
            matrix = max(alike, key=lambda m: held[m][rank])
            alike.remove(matrix)
            owners[matrix] = rank
            load[rank] += amount
    return owners


def muon_traffic(
    shapes: Sequence[Sequence[int]], held: Sequence[Sequence[int]], rank: int, itemsize: int = 2
) -> Traffic:
    """One step, exactly as ``rank`` sends it; see ``matrix_owners``. Updates travel in 16 bits, as they are turned."""
    at_least(1, itemsize=itemsize)
    if not shapes:
        return Traffic()
    index(ranks := len(held[0]), rank=rank)
    owners = matrix_owners(shapes, held)
    here = sum(parts[rank] for parts in held)
    owned = [m for m, owner in enumerate(owners) if owner == rank]
    whole, own = sum(sum(held[m]) for m in owned), sum(held[m][rank] for m in owned)
    payload = itemsize * (here + whole)
    return Traffic([TrafficRow("all-to-all", ranks, 2, payload, payload - 2 * itemsize * own)])


def mean_muon_traffic(matrices: float, ranks: int) -> Traffic:
    """The most that a rank sends on average: as if each held an equal part of every matrix. ``matrices``: elements."""
    at_least(1, ranks=ranks)
    not_negative(matrices=matrices)
    payload = 2 * 2 * matrices / ranks
    row = TrafficRow("all-to-all", ranks, 2, payload, payload * (ranks - 1) / ranks)
    return Traffic([row] if ranks > 1 and matrices else [])


def muon_seconds(shape: ModelShape, plan: Plan, hardware: Hardware, rank: int) -> float:
    """To turn the matrices of pipeline rank ``rank``, and what travels for it: all of them on every rank, or with ZeRO
    the owner's share. Those of routed experts have owners among the fewer ranks that have the same experts."""
    total = 0.0
    strides = plan.tp, plan.tp * plan.ep
    for matrices, copies, stride in zip(plan.matrices_on(shape, rank), plan.copies, strides, strict=True):
        ranks = min(plan.shard, copies) if plan.zero else 1
        for rows, columns, count in matrices:
            n, m = sorted((rows, columns))
            step = sum(matmul_seconds(*size, hardware) for size in ((n, n, m), (n, n, n), (n, m, n)))
            total += count * STEPS * step / ranks
        elements = sum(map(prod, matrices))
        total += 2 * collective_seconds("all-to-all", 2 * elements / ranks, ranks, stride, hardware)
    return total
