"""The check of 15.5: tiles that fit into a fast memory, and the numbers that they move."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from course_lib.grading.report import Report, check

Choose = Callable[[int, int, int], tuple[int, int]]
STEP = 16  # tiles are multiples of it
CASES = [  # tokens, size of a head, numbers that the fast memory holds
    (1024, 64, 50_000),
    (1024, 64, 13_000),
    (1024, 128, 115_000),  # one more tile of queries fits than is of use
    (1024, 16, 17_200),
    (512, 64, 64 * (2 * 64 + 16) + 2 * 16 * 64),  # the best tiles fill it exactly
    (768, 32, 24_000),
    (320, 16, 1_000_000),  # everything fits
    (64, 64, 4 * 16 * 64 + 16 * 16),  # only 16 x 16 fits
    (16, 8, 10_000),
]


def _held(r: int, c: int, d: int, *, scores: int = 1, output: int = 1, values: int = 1) -> int:
    return (1 + output) * r * d + (1 + values) * c * d + scores * r * c


def _moved(n: int, d: int, r: int, c: int) -> int:
    """Numbers between slow and fast memory."""
    ends = (min(first + r, n) for first in range(0, n, r))
    return 2 * n * d + sum(2 * d * (min(n, -(-end // c) * c)) for end in ends)


@cache
def _best(n: int, d: int, memory: int, **counted: int) -> tuple[int, int]:
    sizes = range(STEP, n + 1, STEP)
    fitting = [(r, c) for r in sizes for c in sizes if _held(r, c, d, **counted) <= memory]
    return min(fitting, key=lambda tile: _moved(n, d, *tile))


def _largest(n: int, d: int, memory: int) -> tuple[int, int]:
    """As many queries as fit, with the smallest tile of keys."""
    return max(r for r in range(STEP, n + 1, STEP) if _held(r, STEP, d) <= memory), STEP


def _square(n: int, d: int, memory: int) -> tuple[int, int]:
    side = max(r for r in range(STEP, n + 1, STEP) if _held(r, r, d) <= memory)
    return side, side


def _largest_area(n: int, d: int, memory: int) -> tuple[int, int]:
    sizes = range(STEP, n + 1, STEP)
    return max(
        ((r, c) for r in sizes for c in sizes if _held(r, c, d) <= memory), key=lambda tile: tile[0] * tile[1]
    )


@check
def check_15_5(report: Report, choose: Choose) -> None:
    for n, d, memory in CASES:
        with report.case(f"{n:,} tokens, d = {d}, room for {memory:,}"):
            _try(report, choose, n, d, memory)


def _try(report: Report, choose: Choose, n: int, d: int, memory: int) -> None:
    got = choose(n, d, memory)
    pair = isinstance(got, tuple | list) and len(got) == 2
    if not pair or any(int(size) != size or size % STEP or not STEP <= size <= n for size in got):
        report.fail(f"the result is {got!r}", task="Both are multiples of 16, at least 16 and at most `n`.")
    r, c = (int(size) for size in got)
    held = _held(r, c, d)
    report.true(
        held <= memory,
        "the tiles fit",
        f"tiles of {r} × {c} take {held:,} numbers, and there is room for {memory:,}",
        got=(r, c),
        mistakes={s: lambda o=o: _best(n, d, memory, **o) for s, o in TOO_MUCH.items()},
        given=(),
        task="At once there are in it a tile of q and one of the output, of r × d numbers each, a tile of k and one of "
        "v, of c × d numbers each, and a tile of scores, of r × c numbers",
    )
    report.at_most(
        "numbers moved",
        _moved(n, d, r, c),
        _moved(n, d, *_best(n, d, memory)),
        mistakes={s: lambda p=program: _moved(n, d, *p(n, d, memory)) for s, program in MORE.items()},
        task="No other tiles that fit move fewer numbers.",
    )


TOO_MUCH = {
    "when the tile of scores is not counted": {"scores": 0},
    "when the tile of the output is not counted": {"output": 0},
    "when the tile of v is not counted": {"values": 0},
    "when neither the tile of the output nor the tile of v is counted": {"output": 0, "values": 0},
}
MORE: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
    "when the tile of queries is as large as possible": _largest,
    "when the tiles are square, and as large as possible": _square,
    "when the tile of scores is as large as possible": _largest_area,
    "when tiles that fill the fast memory exactly are refused": lambda n, d, memory: _best(n, d, memory - 1),
    "when each number is counted as two bytes": lambda n, d, memory: _best(n, d, memory // 2),
}
