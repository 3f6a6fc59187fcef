"""One list of a split, such as the heads: what it costs, and its fastest shares if memory allows them.

Ranks meet between two parts of a layer, in forward and in backward, and the slowest decides when. So a part costs the
largest of its ranks' times in forward, and the largest in backward; these may be times of two different ranks.

The search goes through times, not through shares. With two limits, one for forward and one for backward, each rank
takes as many units as it can do within both. ``fastest_within`` looks for the two limits of least sum with which the
ranks take all units.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from simulator.inputs.checks import at_least, not_negative

FORWARD, BACKWARD = 0, 1

Shares = list[int]  # one entry a rank


@dataclass(frozen=True)
class Part:
    """One list to be found.

    Args:
        name: as in ``LayerSplit``: heads, columns or sequence.
        total: units to be dealt out.
        seconds: (rank, share) -> (seconds of forward, of backward); neither falls when the share grows.
        bytes: of memory that one unit takes.
        longest: seconds for each unit of the longest share: an all-gather takes as long as its largest chunk.
    """

    name: str
    total: int
    seconds: Callable[[int, int], tuple[float, float]]
    bytes: float = 0.0
    longest: float = 0.0

    def __post_init__(self) -> None:
        at_least(1, total=self.total)
        not_negative(bytes=self.bytes, longest=self.longest)

    def slowest(self, shares: Sequence[int]) -> tuple[float, float]:
        """The time of the rank that is the slowest in forward, and of the one that is the slowest in backward."""
        forward, backward = zip(*(self.seconds(r, n) for r, n in enumerate(shares)), strict=True)
        return max(forward), max(backward)

    def cost(self, shares: Sequence[int]) -> float:
        """The slowest rank's time in each direction, and the transfer of the longest share."""
        return sum(self.slowest(shares)) + self.longest * max(shares)

    def enough(self, shares: Sequence[int]) -> bool:
        """Whether the ranks take all units if each takes so many."""
        return sum(shares) >= self.total

    def trimmed(self, shares: Shares) -> Shares:
        """Without what is beyond the total, taken from the slowest rank."""
        shares = list(shares)
        for _ in range(sum(shares) - self.total):
            having = (r for r, n in enumerate(shares) if n)
            shares[max(having, key=lambda r: (sum(self.seconds(r, shares[r])), shares[r]))] -= 1
        return shares


def fastest(part: Part, limit: Shares) -> Shares | None:
    """The shares of least cost, each at most its limit; ``None`` if the limits are too low."""
    if not part.enough(limit):
        return None
    floor = shortest_times(part, limit)
    found = fastest_within(part, limit, part.enough, floor)
    assert found is not None  # the limits are enough, and no cost is too much
    best = part.trimmed(found)
    if not part.longest:
        return best
    least, alone = part.cost(best), sum(part.slowest(best))
    for longest in range(-(-part.total // len(limit)), max(best)):  # a longer one is only slower to send
        sending = part.longest * longest
        if sending + alone >= least:
            break
        capped = [min(n, longest) for n in limit]
        if shares := fastest_within(part, capped, part.enough, floor, least - sending):
            best = part.trimmed(shares)
            least = part.cost(best)
    return best


def fastest_within(
    part: Part,
    limit: Shares,
    possible: Callable[[Shares], bool],
    floor: tuple[float, float],
    below: float = inf,
) -> Shares | None:
    """The most that each rank can do in the two times, of forward and of backward, whose sum is least.

    A walk: the shortest forward, then the shortest backward beside it. Any other pair has a forward that is at least as
    long, so its backward must be shorter by as much. With this as a limit the walk goes on.

    Args:
        limit: units of each rank.
        possible: whether all units can be dealt out if each rank takes at most so many.
        floor: no forward and no backward is shorter.
        below: only a sum below this one is of use.
    """
    best = None
    limit = _before(part, BACKWARD, limit, below - floor[FORWARD])
    limit = _before(part, FORWARD, limit, below - floor[BACKWARD])
    while min(limit) >= 0 and possible(limit):
        shares = _shortest(part, FORWARD, limit, possible)
        shares = _shortest(part, BACKWARD, shares, possible)
        forward, backward = part.slowest(shares)
        if forward + backward < below:
            best, below = shares, forward + backward
        limit = _before(part, BACKWARD, limit, min(backward, below - forward))
        limit = _before(part, FORWARD, limit, below - floor[BACKWARD])
    return best


def shortest_times(part: Part, limit: Shares) -> tuple[float, float]:
    """The shortest forward and the shortest backward, each by itself."""
    forward, backward = (_shortest(part, way, limit, part.enough) for way in (FORWARD, BACKWARD))
    return part.slowest(forward)[FORWARD], part.slowest(backward)[BACKWARD]


def _shortest(part: Part, way: int, limit: Shares, possible: Callable[[Shares], bool]) -> Shares:
    """The most that each rank can do within the shortest time of one direction, by bisection of this time."""
    low, shares = 0.0, limit
    while min(fewer := _before(part, way, shares, part.slowest(shares)[way])) >= 0 and possible(fewer):
        shares = fewer
        middle = (low + part.slowest(shares)[way]) / 2
        half = _until(part, way, shares, middle)
        if min(half) >= 0 and possible(half):
            shares = half
        else:
            low = middle
    return shares


def _until(part: Part, way: int, limit: Shares, seconds: float) -> Shares:
    """The most that each rank can do in these seconds; -1 if they are too short even for nothing."""
    return [
        bisect_right(range(n + 1), seconds, key=lambda n, r=r: part.seconds(r, n)[way]) - 1
        for r, n in enumerate(limit)
    ]


def _before(part: Part, way: int, limit: Shares, seconds: float) -> Shares:
    """The most that each rank can do in less than these seconds; -1 if they are too short even for nothing."""
    return [
        bisect_left(range(n + 1), seconds, key=lambda n, r=r: part.seconds(r, n)[way]) - 1
        for r, n in enumerate(limit)
    ]


def levels(part: Part, ranks: int) -> list[tuple[float, tuple[int, ...]]]:
    """Every cost that a part can have, and what each rank can take at most at that cost."""
    table = [[part.seconds(r, n) for n in range(part.total + 1)] for r in range(ranks)]
    ahead, back = ([[both[way] for both in row] for row in table] for way in (FORWARD, BACKWARD))
    bounds = range(-(-part.total // ranks), part.total + 1) if part.longest else [part.total]
    found = set()
    for forward in _times(ahead):
        can = [bisect_right(row, forward) - 1 for row in ahead]
        # With a shorter backward than this one, no rank would need all of this forward.
        first = [bisect_left(row, forward) for row in ahead]
        shortest = min(back[r][n] for r, n in enumerate(first) if n <= can[r])
        longest = max(row[n] for row, n in zip(back, can, strict=True))
        for backward in _times(back):
            if shortest <= backward <= longest:
                both = [min(n, bisect_right(row, backward) - 1) for row, n in zip(back, can, strict=True)]
                found |= {tuple(min(most, n) for n in both) for most in bounds}
    return [(part.cost(units), units) for units in found if part.enough(units)]


def _times(table: Sequence[Sequence[float]]) -> list[float]:
    """Every time in which all ranks can end, ascending."""
    return sorted({t for row in table for t in row if t >= max(row[0] for row in table)})
