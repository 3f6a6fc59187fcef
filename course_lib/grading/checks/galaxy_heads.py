"""The check of exercise 13.3: heads dealt to devices of unequal speed and memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from course_lib.grading.report import Report, check


class Clock:
    """Seconds of each rank for so many heads; it counts for which of them it was asked."""

    def __init__(self, tables: Sequence[Sequence[float]]) -> None:
        self.tables, self.asked = [list(table) for table in tables], 0

    def __call__(self, rank: int, heads: int) -> float:
        self.asked += 1
        return self.tables[rank][heads]


def fastest(tables: Sequence[Sequence[float]], room: Sequence[int]) -> float | None:
    """The least time in which the slowest rank ends; None where the heads do not fit. By the times themselves."""
    heads = len(tables[0]) - 1
    if sum(min(own, heads) for own in room) < heads:
        return None
    for limit in sorted({time for table in tables for time in table}):
        most = [
            max((n for n in range(min(own, heads) + 1) if table[n] <= limit), default=0)
            for table, own in zip(tables, room, strict=True)
        ]
        if sum(most) >= heads:
            return limit
    raise AssertionError("the longest time is enough for all heads")


def _times(
    rng: random.Random | None, heads: int, slowness: Sequence[float], steps: bool
) -> list[list[float]]:
    """A start and a time for each head; with ``steps`` heads are computed in pairs, so an odd one costs as much."""
    tables = []
    for slow in slowness:
        start = rng.uniform(0.1, 0.5) if rng else 0.5
        counted = [n + n % 2 if steps else n for n in range(heads + 1)]
        tables.append([0.0, *(slow * (start + n) for n in counted[1:])])
    return tables


def in_proportion(tables: Sequence[Sequence[float]], room: Sequence[int]) -> list[int]:
    """Heads in proportion to the speed at one head; what is left over goes to the first ranks."""
    heads, speeds = len(tables[0]) - 1, [1 / table[1] for table in tables]
    shares = [int(heads * speed / sum(speeds)) for speed in speeds]
    for rank in range(heads - sum(shares)):
        shares[rank % len(shares)] += 1
    return shares


def by_largest_remainder(tables: Sequence[Sequence[float]], room: Sequence[int]) -> list[int]:
    """Heads in proportion to the speed at one head; what is left over goes where most was cut off."""
    heads, speeds = len(tables[0]) - 1, [1 / table[1] for table in tables]
    ideal = [heads * speed / sum(speeds) for speed in speeds]
    shares = [min(int(part), own) for part, own in zip(ideal, room, strict=True)]
    for _ in range(heads - sum(shares)):
        free = [rank for rank, share in enumerate(shares) if share < room[rank]]
        shares[max(free, key=lambda r: ideal[r] - shares[r])] += 1
    return shares


def rest_to_the_fastest(tables: Sequence[Sequence[float]], room: Sequence[int]) -> list[int]:
    """Heads in proportion to the speed at one head; what is left over is dealt one by one, the fastest rank first."""
    heads, speeds = len(tables[0]) - 1, [1 / table[1] for table in tables]
    shares = [min(int(heads * speed / sum(speeds)), own) for speed, own in zip(speeds, room, strict=True)]
    order = sorted(range(len(speeds)), key=lambda r: -speeds[r])
    while sum(shares) < heads:
        for rank in order:
            shares[rank] += shares[rank] < room[rank] and sum(shares) < heads
    return shares


def evenly(tables: Sequence[Sequence[float]], room: Sequence[int]) -> list[int]:
    heads, p = len(tables[0]) - 1, len(tables)
    return [heads // p + (rank < heads % p) for rank in range(p)]


def without_memory(tables: Sequence[Sequence[float]], room: Sequence[int]) -> list[int]:
    return greedy(tables, [len(tables[0]) - 1] * len(tables))


def greedy(tables: Sequence[Sequence[float]], room: Sequence[int]) -> list[int]:
    shares = [0] * len(tables)
    for _ in range(len(tables[0]) - 1):
        free = [rank for rank, share in enumerate(shares) if share < room[rank]]
        rank = min(free, key=lambda r: tables[r][shares[r] + 1])
        shares[rank] += 1
    return shares


def by_time_now(tables: Sequence[Sequence[float]], room: Sequence[int]) -> list[int]:
    """Each head goes to the rank that is least busy before it gets the head, and not after."""
    shares = [0] * len(tables)
    for _ in range(len(tables[0]) - 1):
        free = [rank for rank, share in enumerate(shares) if share < room[rank]]
        rank = min(free, key=lambda r: tables[r][shares[r]])
        shares[rank] += 1
    return shares


def by_least_increase(tables: Sequence[Sequence[float]], room: Sequence[int]) -> list[int]:
    """Each head goes to the rank whose time grows least by it."""
    shares = [0] * len(tables)
    for _ in range(len(tables[0]) - 1):
        free = [rank for rank, share in enumerate(shares) if share < room[rank]]
        rank = min(free, key=lambda r: tables[r][shares[r] + 1] - tables[r][shares[r]])
        shares[rank] += 1
    return shares


def all_rest_to_the_fastest(tables: Sequence[Sequence[float]], room: Sequence[int]) -> list[int]:
    """Heads in proportion to the speed at one head; the fastest rank with memory gets what is left over."""
    heads, speeds = len(tables[0]) - 1, [1 / table[1] for table in tables]
    shares = [min(int(heads * speed / sum(speeds)), own) for speed, own in zip(speeds, room, strict=True)]
    for _ in range(heads - sum(shares)):
        free = [rank for rank, share in enumerate(shares) if share < room[rank]]
        shares[max(free, key=lambda r: speeds[r])] += 1
    return shares


def by_first_head(tables: Sequence[Sequence[float]], room: Sequence[int]) -> list[int]:
    """As if n heads took n times as long as one."""
    return greedy([[n * table[1] for n in range(len(table))] for table in tables], room)


def first_to_each(tables: Sequence[Sequence[float]], room: Sequence[int]) -> list[int]:
    """Every rank with memory gets a head, and only the others are dealt by time."""
    shares = [min(1, own) for own in room]
    for _ in range(len(tables[0]) - 1 - sum(shares)):
        free = [rank for rank, share in enumerate(shares) if share < room[rank]]
        shares[min(free, key=lambda r: tables[r][shares[r] + 1])] += 1
    return shares


def moved_afterwards(tables: Sequence[Sequence[float]], room: Sequence[int]) -> list[int]:
    """Dealt without a look at the memory; what does not fit goes to the first ranks that have memory."""
    dealt = without_memory(tables, room)
    shares = [min(share, own) for share, own in zip(dealt, room, strict=True)]
    for _ in range(sum(dealt) - sum(shares)):
        shares[next(rank for rank, share in enumerate(shares) if share < room[rank])] += 1
    return shares


def one_too_many(exact: bool, tables: Sequence[Sequence[float]], room: Sequence[int]) -> list[int]:
    """Where a part of a head would still fit, a whole one is given."""
    return greedy(tables, [own + (own > 0 and not exact) for own in room])


def one_too_few(exact: bool, tables: Sequence[Sequence[float]], room: Sequence[int]) -> list[int]:
    """Where memory is full to the last byte, the last head is refused."""
    return greedy(tables, [max(0, own - exact) for own in room])


MISTAKES = {
    "when the heads are dealt evenly": evenly,
    "when the heads are dealt in proportion to the speed, and the rest goes to the first ranks": in_proportion,
    "when no rank's memory is looked at": without_memory,
    "when a head goes to the rank that is least busy before it gets the head": by_time_now,
    "when a head goes to the rank whose own time grows least by it": by_least_increase,
    "when the heads are dealt in proportion to the speed, and the rest by the remainders": by_largest_remainder,
    "when the heads are dealt in proportion to the speed, and the rest goes to the fastest ranks": rest_to_the_fastest,
    "when the heads are dealt in proportion to the speed, and the fastest rank gets all the rest": (
        all_rest_to_the_fastest
    ),
    "when n heads are taken to need n times the seconds of one head": by_first_head,
    "when every rank gets one head first": first_to_each,
    "when heads that do not fit into a rank's memory are moved to the first ranks afterwards": moved_afterwards,
}


# here the memory of a rank is a multiple of `head_bytes`, so the last head fills it
FULL = {"12 heads, the fast rank has memory for 5"}


@check
def check_13_3(report: Report, deal_heads: Callable[..., list[int]]) -> None:
    rng = random.Random(report.seed())
    cases = {
        "8 heads, one rank three times as slow": (8, [1, 3], [8, 8], False),
        "12 heads, the fast rank has memory for 5": (12, [1, 3], [5, 12], False),
        "16 heads on 3 ranks": (16, [1, 1.5, 4], [16, 16, 16], False),
        "12 heads on 3 ranks, one without memory": (12, [1, 2, 2.5], [12, 0, 12], False),
        "12 heads, computed in pairs": (12, [1, 2.6], [12, 12], True),
        "1 head on 3 ranks": (1, [2, 1, 3], [1, 1, 1], False),
        "all memory is needed": (10, [1, 5], [4, 6], False),
        "64 heads on 8 ranks": (64, [1, 1, 1.5, 2, 2, 3, 4, 8], [12, 9, 20, 64, 64, 64, 3, 64], False),
    }
    for name, (heads, slowness, room, steps) in cases.items():
        with report.case(name):
            times = _times(rng, heads, slowness, steps)
            _check(report, deal_heads, times, room, exact=name in FULL)
    with report.case("9 heads on 4 ranks, three with memory for 2"):  # fixed: here all mistakes differ
        _check(report, deal_heads, _times(None, 9, [1.5, 5, 1, 3], False), [2, 2, 9, 2])
    with report.case("heads that do not fit"):
        _refused(report, deal_heads, _times(rng, 12, [1, 3], False), [5, 6])


def _check(
    report: Report, answer: Callable, tables: list[list[float]], room: list[int], exact: bool = False
) -> None:
    heads, head_bytes = len(tables[0]) - 1, 100
    clock = Clock(tables)
    memory = [own * head_bytes + (99 if own and not exact else 0) for own in room]
    full = "when a rank does not get the head that fills its memory to the last byte"
    more = "when the number of heads that fit into a rank's memory is rounded up"
    mistakes = MISTAKES | {full: partial(one_too_few, exact), more: partial(one_too_many, exact)}
    shares = answer(heads, clock, list(memory), head_bytes)
    asked, given = clock.asked, (tables, room)
    try:
        shares = [int(share) for share in shares]
    except (TypeError, ValueError):
        report.fail(f"the result is {shares!r}", task="a list of whole numbers, one number for each rank")
    report.true(
        len(shares) == len(tables) and min(shares) >= 0 and sum(shares) == heads,
        f"{len(tables)} numbers that add up to the heads",
        f"the result is {shares}, for {heads} head{'s' * (heads > 1)} on {len(tables)} ranks",
        task="one number for each rank; they add up to `heads`",
    )
    over = next((rank for rank, share in enumerate(shares) if share > room[rank]), None)
    report.true(
        over is None,
        "every rank has memory for its heads",
        f"rank {over} gets {shares[over or 0]} heads, and has memory for {room[over or 0]}",
        got=shares,
        mistakes=mistakes,
        given=given,
        task="No rank gets more heads than fit into its memory",
    )
    took = max(table[share] for table, share in zip(tables, shares, strict=True))
    least = fastest(tables, room)
    report.true(
        took <= least * (1 + 1e-9),
        "no other split ends sooner",
        f"with {shares} the slowest rank ends after {took:.2f} seconds; {least:.2f} seconds are possible",
        got=shares,
        mistakes=mistakes,
        given=given,
        task="the slowest rank ends as soon as possible",
    )
    report.at_most(
        "calls of `seconds`",
        asked,
        heads + len(tables),
        task="`seconds` is called at most `heads` + ranks times",
    )


def _refused(report: Report, answer: Callable, tables: list[list[float]], room: list[int]) -> None:
    try:
        shares = answer(12, Clock(tables), [100 * own for own in room], 100)
    except ValueError:
        report.ok("refused with a ValueError")
    else:
        report.fail(
            f"12 heads do not fit into memory for 5 and 6, and the result is {shares!r}",
            task="raise a `ValueError`",
        )
