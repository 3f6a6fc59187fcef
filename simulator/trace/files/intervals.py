"""Times at which something went on, as sorted pairs (start, end) that do not touch: their union, difference, length."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

Intervals = list[tuple[float, float]]
MANY = 200_000  # pairs that are kept before those that overlap are made one


def union(pairs: Iterable[tuple[float, float]], gap: float = 0.0) -> Intervals:
    """Pairs in any order; those that overlap, or lie no further apart than ``gap``, become one."""
    found: Intervals = []
    for start, end in sorted(pairs):
        if found and start <= found[-1][1] + gap:
            if end > found[-1][1]:
                found[-1] = found[-1][0], end
        elif end > start:
            found.append((start, end))
    return found


def intersection(one: Intervals, other: Intervals) -> Intervals:
    """What lies in both."""
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def difference(one: Intervals, other: Intervals) -> Intervals:
    """What lies in ``one`` alone."""
    ends = [start for start, _ in other], [end for _, end in other]
    outside = zip([float("-inf"), *ends[1]], [*ends[0], float("inf")], strict=True)
    return intersection(one, [(start, end) for start, end in outside if start < end])


def between(pairs: Intervals, start: float, end: float) -> Intervals:
    """The part from ``start`` to ``end``."""
    first = max(0, bisect_right(pairs, (start, float("inf"))) - 1)
    last = bisect_right(pairs, (end, float("inf")))
    return intersection(pairs[first:last], [(start, end)])


def length(pairs: Intervals) -> float:
    return sum(end - start for start, end in pairs)


class Busy:
    """Intervals that are found one after the other: however many there are, only what does not overlap is kept."""

    def __init__(self) -> None:
        self._pairs: Intervals = []
        self._room = MANY

    def add(self, start: float, end: float) -> None:
        self._pairs.append((start, end))
        if len(self._pairs) >= self._room:
            self._pairs = union(self._pairs)
            self._room = len(self._pairs) + MANY

    def intervals(self) -> Intervals:
        return union(self._pairs)
