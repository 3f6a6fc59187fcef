"""Deal out heads, columns and positions to ranks of unequal speed and memory: the fastest split that fits, by search.

Ranks meet between two parts of a layer, and the slowest decides how long a part takes. So a part costs the largest of
its ranks' times, and the sum over the parts is to be as small as it can be. Memory joins the parts: what a rank's heads
take is not there for its columns.

Without memory each part is found by itself: for a time t every rank takes as many units as it can do in t, and the
smallest t in which the ranks take all units is the answer. If these shares do not fit, ``_search`` tries combinations
of times, cheapest first. For each, dynamic programming over the ranks says whether there are shares that fit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import inf

from simulator.inputs.checks import at_least, is_number, not_negative, refuse

MOST_UNITS = {1: 64, 2: 16}  # of a list that the search goes through: one such list, or two

Shares = list[int]  # one entry a rank


@dataclass(frozen=True)
class Part:
    """One list to be found.

    Args:
        name: as in ``LayerSplit``: heads, columns or sequence.
        total: units to be dealt out.
        seconds: (rank, share) -> seconds; it does not fall when the share grows.
        bytes: of memory that one unit takes.
        longest: seconds for each unit of the longest share: an all-gather takes as long as its largest chunk.
    """

    name: str
    total: int
    seconds: Callable[[int, int], float]
    bytes: float = 0.0
    longest: float = 0.0

    def __post_init__(self) -> None:
        at_least(1, total=self.total)
        not_negative(bytes=self.bytes, longest=self.longest)

    def cost(self, shares: Sequence[int]) -> float:
        """The slowest rank's time, and the transfer of the longest share."""
        return max(self.seconds(r, n) for r, n in enumerate(shares)) + self.longest * max(shares)


def deal(parts: Sequence[Part], room: Sequence[float]) -> list[Shares] | None:
    """Shares of every part, in order, of which the sum of the parts' costs is least.

    Args:
        room: bytes of each rank that the shares may take.

    Returns:
        One list for each part; ``None`` if nothing fits. Where memory is short, a long list is dealt out in steps
        of a 64th (of a 16th in Galaxy, which has three lists), so that the search ends; short lists are exact.
    """
    for bytes_ in room:
        if not (is_number(bytes_) and bytes_ >= 0):
            refuse("room", "a number of at least 0 for each rank, or infinity", bytes_)
    parts = [_remembering(part) for part in parts]
    limits = [[part.total] * len(room) for part in parts]
    if len(parts) == 1:
        limits = [[_most(parts[0].total, bytes_, parts[0].bytes) for bytes_ in room]]
    alone = [_fastest(part, limit) for part, limit in zip(parts, limits, strict=True)]
    if None in alone:
        return None
    return alone if fits(parts, alone, room) else _search(parts, room)


def fits(parts: Sequence[Part], shares: Sequence[Shares], room: Sequence[float]) -> bool:
    """Whether no rank needs more than its room."""
    return all(
        sum(part.bytes * n[rank] for part, n in zip(parts, shares, strict=True)) <= bytes_
        for rank, bytes_ in enumerate(room)
    )


def _most(cap: int, room: float, each: float) -> int:
    """How many units of ``each`` bytes fit into the room, at most ``cap``."""
    return cap if cap * each <= room else int(room // each)


def _remembering(part: Part) -> Part:
    return Part(part.name, part.total, lru_cache(maxsize=None)(part.seconds), part.bytes, part.longest)


# ---- one part by itself -----------------------------------------------------------------------------------


def _fastest(part: Part, limit: Sequence[int]) -> Shares | None:
    """The shares of least cost, each at most its limit."""
    best = _slowest_as_fast_as_possible(part, limit)
    if best is None or not part.longest:
        return best
    least, at_least = part.cost(best), part.cost(best) - part.longest * max(best)
    for longest in range(
        -(-part.total // len(limit)), max(best)
    ):  # a longer one could only be slower to send
        if part.longest * longest + at_least >= least:
            break
        shares = _slowest_as_fast_as_possible(part, [min(n, longest) for n in limit])
        if shares is not None and part.cost(shares) < least:
            best, least = shares, part.cost(shares)
    return best


def _slowest_as_fast_as_possible(part: Part, limit: Sequence[int]) -> Shares | None:
    if sum(limit) < part.total:
        return None
    ranks = range(len(limit))

    def within(seconds: float) -> Shares:
        return [
            bisect_right(range(limit[r] + 1), seconds, key=lambda n: part.seconds(r, n)) - 1 for r in ranks
        ]

    low, high = max(part.seconds(r, 0) for r in ranks), max(part.seconds(r, limit[r]) for r in ranks)
    if sum(within(low)) >= part.total:
        high = low
    while (middle := (low + high) / 2) not in (low, high) and high - low > 1e-12 * high:
        low, high = (low, middle) if sum(within(middle)) >= part.total else (middle, high)
    return _trimmed(part, within(high))


def _trimmed(part: Part, shares: Shares) -> Shares:
    """Take from the slowest rank what the ranks could do beyond the total."""
    for _ in range(sum(shares) - part.total):
        slowest = max(
            (r for r, n in enumerate(shares) if n), key=lambda r: (part.seconds(r, shares[r]), shares[r])
        )
        shares[slowest] -= 1
    return shares


# ---- several parts that share the memory ------------------------------------------------------------------


class _Levels:
    """Every cost that a part can have, ascending, and what each rank can take at that cost, in units of ``step``."""

    def __init__(self, part: Part, ranks: int, step: int) -> None:
        self.part, self.step, self.bytes = part, step, part.bytes * step
        self.units = -(-part.total // step)
        table = [
            [part.seconds(r, min(u * step, part.total)) for u in range(self.units + 1)] for r in range(ranks)
        ]
        times = sorted({t for row in table for t in row if t >= max(row[0] for row in table)})
        can = {t: [bisect_right(row, t) - 1 for row in table] for t in times}
        bounds = range(-(-self.units // ranks), self.units + 1) if part.longest else [self.units]
        found = {}
        for t, most in product(times, bounds):
            units = tuple(min(most, n) for n in can[t])
            cost = t + part.longest * step * max(units)
            if sum(units) >= self.units and cost < found.get(units, inf):
                found[units] = cost
        self.levels = sorted((cost, units) for units, cost in found.items())


def _search(parts: Sequence[Part], room: Sequence[float]) -> list[Shares] | None:
    """Combinations of times in ascending order; the last part's time is found by bisection for each of the others'."""
    # Bisection needs a cost that is one time alone; the longest such list is not gone through.
    last = max((p for p in parts if not p.longest), key=lambda p: p.total)
    others = [part for part in parts if part is not last]
    most = MOST_UNITS[min(len(others), 2)]
    table = {
        part.name: _Levels(part, len(room), -(-part.total // most) if part.total > 2 * most else 1)
        for part in others
    } | {last.name: _Levels(last, len(room), -(-last.total // 512) if last.total > 512 else 1)}
    ends = table.pop(last.name)
    rest = list(table.values())
    cheapest = ends.levels[0][0]
    best, least = None, inf
    for choice in sorted(
        product(*(part.levels for part in rest)), key=lambda levels: sum(c for c, _ in levels)
    ):
        cost = sum(c for c, _ in choice)
        if cost + cheapest >= least:
            break
        caps = [units for _, units in choice]

        def loosely(end: int, caps: list = caps) -> bool:
            return _could_fit([*rest, ends], [*caps, ends.levels[end][1]], room)

        first = bisect_right(range(len(ends.levels)), False, key=loosely)
        for end in range(first, len(ends.levels)):
            if cost + ends.levels[end][0] >= least:
                break
            if dealt := _dealt(rest, caps, ends, ends.levels[end][1], room):
                best, least = dealt, cost + ends.levels[end][0]
                break
    if best is None:
        return None
    named = {
        levels.part.name: _in_full(levels, units) for levels, units in zip([*rest, ends], best, strict=True)
    }
    return [named[part.name] for part in parts]


def _could_fit(parts: Sequence[_Levels], caps: Sequence[Sequence[int]], room: Sequence[float]) -> bool:
    """A necessary condition: for every choice of parts, what they need is there on all ranks together."""
    for chosen in product((False, True), repeat=len(parts)):
        needed = sum(p.bytes * p.units for p, c in zip(parts, chosen, strict=True) if c)
        there = 0.0
        for rank, bytes_ in enumerate(room):
            taken = sum(p.bytes * cap[rank] for p, cap, c in zip(parts, caps, chosen, strict=True) if c)
            there += min(bytes_, taken)
        if there < needed * (1 - 1e-12):
            return False
    return True


def _dealt(
    rest: Sequence[_Levels],
    caps: Sequence[Sequence[int]],
    last: _Levels,
    last_caps: Sequence[int],
    room: Sequence[float],
) -> list[Shares] | None:
    """Units of every part that fit; the ranks one after the other, with the most units of the last part for each
    number of units that the other parts have dealt out so far."""
    goal = tuple(part.units for part in rest)
    reached: dict[tuple[int, ...], tuple[int, tuple]] = {(0,) * len(rest): (0, ())}
    for rank, bytes_ in enumerate(room):
        choices = []
        for units in product(*(range(cap[rank] + 1) for cap in caps)):
            left = bytes_ - sum(part.bytes * n for part, n in zip(rest, units, strict=True))
            if left >= 0:
                choices.append((units, _most(last_caps[rank], left, last.bytes)))
        further: dict[tuple[int, ...], tuple[int, tuple]] = {}
        for before, (sum_before, taken) in reached.items():
            for units, most in choices:
                state = tuple(a + b for a, b in zip(before, units, strict=True))
                inside = all(a <= b for a, b in zip(state, goal, strict=True))
                if inside and sum_before + most > further.get(state, (-1, ()))[0]:
                    further[state] = sum_before + most, (*taken, (*units, most))
        reached = further
    most, taken = reached.get(goal, (-1, ()))
    return [list(units) for units in zip(*taken, strict=True)] if most >= last.units else None


def _in_full(levels: _Levels, units: Shares) -> Shares:
    return _trimmed(levels.part, [n * levels.step for n in units])
