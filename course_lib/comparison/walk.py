"""Which start and which learning rate of a method is tried next; what was tried decides it, and nothing else.

The score over the learning rate rises, then falls. So the middle rate is tried first, then the neighbours of the best
one so far, until both of its neighbours were tried: three or four runs in place of five.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, product
from typing import Any


def with_halves(lrs: Sequence[float]) -> tuple[float, ...]:
    """The grid with a rate halfway between any two neighbours, on the logarithmic axis and with one digit."""
    halves = {float(f"{(low * high) ** 0.5:.0e}") for low, high in pairwise(lrs)}
    return tuple(sorted({*lrs, *halves}))


def best(runs: Iterable[Mapping[str, Any]]) -> Any:
    """The run with the highest score on the validation part; of equal ones the smallest rate, then the first.

    The test part is not read.
    """
    return max(runs, key=lambda run: (run["validation"], -run["lr"]))


def next_try(
    starts: Sequence[str],
    lrs: Sequence[float],
    runs: Sequence[Mapping[str, Any]],
    every: bool = False,
    finer: bool = False,
) -> tuple[str, float] | None:
    """The start and the rate to run next, or None when the sweep is done.

    Every start is tried at the middle rate. The walk over the rates goes on with the best of them. It ends when the
    best rate has lower ones on both sides, or stands at the end of the grid.

    Args:
        lrs: from small to large.
        runs: what was tried, each with ``start``, ``lr`` and ``validation``.
        every: no walk; each start with each rate.
        finer: after the walk, go on in the same way on ``with_halves(lrs)``, so with one or two runs more.
    """
    tried = {(run["start"], run["lr"]) for run in runs}
    middle = lrs[(len(lrs) - 1) // 2]
    wanted = list(product(starts, lrs)) if every else [(start, middle) for start in starts]
    for pair in wanted:
        if pair not in tried:
            return pair
    if every:
        return None
    start = best(run for run in runs if run["lr"] == middle)["start"]
    for grid in (lrs, with_halves(lrs)) if finer else (lrs,):
        at = grid.index(best(run for run in runs if run["start"] == start and run["lr"] in grid)["lr"])
        for neighbour in (at + 1, at - 1):
            if 0 <= neighbour < len(grid) and (start, grid[neighbour]) not in tried:
                return start, grid[neighbour]
    return None
