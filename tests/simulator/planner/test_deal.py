"""The search for shares is never worse than brute force, on random small cases, and says when nothing fits."""

import random
from dataclasses import replace
from itertools import product
from math import inf

import pytest

from simulator.planner.deal import deal, fits
from simulator.planner.part import Part


def all_shares(total, ranks):
    return [shares for shares in product(range(total + 1), repeat=ranks) if sum(shares) == total]


def random_times(rng, slowness, total):
    """For each rank, seconds of 0, 1, 2… units: they never fall."""
    steps = [[0.0, *(rng.uniform(0, 0.5) + s * n for n in range(1, total + 1))] for s in slowness]
    return [[max(row[: n + 1]) for n in range(total + 1)] for row in steps]


def random_case(seed):
    """Up to three parts on two or three ranks; some have memory to spare, some too little."""
    rng = random.Random(seed)
    ranks, count = rng.choice([2, 3]), rng.choice([1, 2, 3])
    parts = []
    for i in range(count):
        total = rng.randint(1, 5 if ranks == 3 else 7)
        slowness = [rng.uniform(0.3, 3) for _ in range(ranks)]
        ways = [
            random_times(rng, slowness, total),
            random_times(rng, [rng.uniform(1, 3) * s for s in slowness], total),
        ]
        longest = rng.choice([0.0, 0.1, 0.5]) if i == 2 or count == 1 else 0.0
        size = rng.choice([0.0, 1.0, 2.5, 0.7])
        parts.append(
            Part(f"part {i}", total, lambda r, n, ways=ways: (ways[0][r][n], ways[1][r][n]), size, longest)
        )
    needed = sum(part.bytes * part.total for part in parts)
    return parts, [rng.choice([inf, rng.uniform(0.2, 2.5) * needed / ranks]) for _ in range(ranks)]


def cost(parts, dealt):
    return sum(part.cost(shares) for part, shares in zip(parts, dealt, strict=True))


@pytest.mark.parametrize("seeds", [range(120)], ids=["120 cases"])
def test_no_split_is_better(seeds):
    solved = tight = apart = 0
    for seed in seeds:
        parts, room = random_case(seed)
        tried = product(*(all_shares(part.total, len(room)) for part in parts))
        best = min((cost(parts, dealt) for dealt in tried if fits(parts, dealt, room)), default=None)
        found = deal(parts, room)
        if best is None:
            assert found is None, f"case {seed}"
            continue
        solved += 1
        assert found is not None, f"case {seed}"
        assert [sum(shares) for shares in found] == [part.total for part in parts]
        assert fits(parts, found, room), f"case {seed}"
        assert cost(parts, found) == pytest.approx(best, rel=1e-9), f"case {seed}"
        together = [
            replace(part, seconds=lambda r, n, of=part.seconds: (sum(of(r, n)), 0.0)) for part in parts
        ]
        apart += cost(parts, deal(together, room)) > best * (1 + 1e-9)
        tight += cost(parts, deal(parts, [inf] * len(room))) < best * (1 - 1e-9)
    assert solved > 60
    assert apart > 3, "in some cases the sum of both directions finds other shares"
    assert tight > 10, "in some cases memory decides"


def test_long_lists_are_dealt_out_in_steps_where_memory_is_short():
    parts = [
        Part("heads", 16, lambda r, n: ((1 + r) * n, 2 * (1 + r) * n), 10.0),
        Part("columns", 4096, lambda r, n: ((1 + r) * n / 256, 2 * (1 + r) * n / 256), 1.0),
        Part("sequence", 509, lambda r, n: ((1 + r) * n / 300, 2 * (1 + r) * n / 300), 0.5, 0.001),
    ]
    room = [1500.0, 1800.0, 1800.0]
    found = deal(parts, room)
    assert [sum(shares) for shares in found] == [16, 4096, 509]
    assert fits(parts, found, room)
    assert cost(parts, found) < cost(parts, [[5, 5, 6], [1365, 1365, 1366], [169, 170, 170]])


def test_a_rank_without_memory_gets_nothing():
    part = Part("heads", 4, lambda r, n: ((1 + r) * n, 2 * (1 + r) * n), 1.0)
    assert deal([part], [0.0, 10.0]) == [[0, 4]]
    assert deal([part], [1.0, 2.0]) is None
