"""Deal out heads, columns and positions to ranks of unequal speed and memory: the fastest split that fits, by search.

The lists are the parts of ``part.py``, and the sum of their costs is to be as small as it can be. Memory joins the
parts: what a rank's heads take is not there for its columns.

Without memory each part is found by itself. If these shares do not fit, ``_search`` tries combinations of times,
cheapest first. For each, dynamic programming over the ranks says whether there are shares that fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf

from simulator.inputs.checks import is_number, refuse
from simulator.planner.part import Part, Shares, fastest, fastest_within, levels, shortest_times

MOST_UNITS = {1: 64, 2: 16}  # of a list that the search goes through: one such list, or two


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
    parts = [replace(part, seconds=cache(part.seconds)) for part in parts]
    limits = [[part.total] * len(room) for part in parts]
    if len(parts) == 1:
        limits = [[_most(parts[0].total, bytes_, parts[0].bytes) for bytes_ in room]]
    found = [fastest(part, limit) for part, limit in zip(parts, limits, strict=True)]
    alone = [shares for shares in found if shares is not None]
    if len(alone) < len(parts):
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


def _search(parts: Sequence[Part], room: Sequence[float]) -> list[Shares] | None:
    """Combinations of the other parts' times, cheapest first; beside each, the fastest times of the last part."""
    # The last part is not gone through, so it is the longest list. Its cost must not depend on the longest share.
    last = max((p for p in parts if not p.longest), key=lambda p: p.total)
    others = [part for part in parts if part is not last]
    most = MOST_UNITS[min(len(others), 2)]
    steps = {p.name: -(-p.total // most) if p.total > 2 * most else 1 for p in others}
    steps[last.name] = -(-last.total // 512) if last.total > 512 else 1
    *rest, end = (_in_steps(part, steps[part.name]) for part in (*others, last))
    every = [end.total] * len(room)
    floor = shortest_times(end, every)
    best, least = None, inf
    for choice in sorted(
        product(*(levels(part, len(room)) for part in rest)), key=lambda those: sum(c for c, _ in those)
    ):
        cost, caps = sum(c for c, _ in choice), [units for _, units in choice]
        if cost + sum(floor) >= least:
            break

        def loosely(own: Shares, caps: list = caps) -> bool:
            return end.enough(own) and _could_fit([*rest, end], [*caps, own], room)

        def fully(own: Shares, caps: list = caps) -> bool:
            return loosely(own) and dealt(tuple(own)) is not None

        @cache
        def dealt(own: tuple[int, ...], caps: list = caps) -> list[Shares] | None:
            return _dealt(rest, caps, end, own, room)

        for possible in (loosely, fully):  # what is too slow even loosely is given up at once
            own = fastest_within(end, every, possible, floor, least - cost)
            if own is None:
                break
            if fully(own):
                best, least = dealt(tuple(own)), cost + sum(end.slowest(own))
    if best is None:
        return None
    named = {part.name: units for part, units in zip([*rest, end], best, strict=True)}
    return [part.trimmed([n * steps[part.name] for n in named[part.name]]) for part in parts]


def _in_steps(part: Part, step: int) -> Part:
    """The same part, dealt out in units of so many units."""
    return Part(
        part.name,
        -(-part.total // step),
        lambda rank, n: part.seconds(rank, min(n * step, part.total)),
        part.bytes * step,
        part.longest * step,
    )


def _could_fit(parts: Sequence[Part], caps: Sequence[Sequence[int]], room: Sequence[float]) -> bool:
    """A necessary condition: for every choice of parts, what they need is there on all ranks together."""
    for chosen in product((False, True), repeat=len(parts)):
        needed = sum(p.bytes * p.total for p, c in zip(parts, chosen, strict=True) if c)
        there = 0.0
        for rank, bytes_ in enumerate(room):
            taken = sum(p.bytes * cap[rank] for p, cap, c in zip(parts, caps, chosen, strict=True) if c)
            there += min(bytes_, taken)
        if there < needed * (1 - 1e-12):
            return False
    return True


def _dealt(
    rest: Sequence[Part],
    caps: Sequence[Sequence[int]],
    last: Part,
    last_caps: Sequence[int],
    room: Sequence[float],
) -> list[Shares] | None:
    """Units of every part that fit; the ranks one after the other, with the most units of the last part for each
    number of units that the other parts have dealt out so far."""
    goal = tuple(part.total for part in rest)
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
    return [list(units) for units in zip(*taken, strict=True)] if most >= last.total else None
