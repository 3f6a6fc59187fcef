"""15.5: tiles that fit into a fast memory, and the numbers that they move."""

from course_lib.grading.judge import Fact, record

FACTS = {
    "sizes": Fact("the sizes", "Both are multiples of 16, at least 16 and at most `n`."),
    "fit": Fact("the tiles", "At once there are in it a tile of q and one of the output, of r × d numbers…"),
    "moved": Fact("numbers moved beyond the fewest", "No other tiles that fit move…", most=0, beyond=True),
}

# size: of a head
Case = record("tokens size memory", lambda c: f"{c.tokens:,} tokens, d = {c.size}, room for {c.memory:,}")
CASES = [
    Case(1024, 64, 50_000),
    Case(1024, 64, 13_000),
    Case(1024, 128, 115_000),  # one more tile of queries fits than is of use
    Case(1024, 16, 17_200),
    Case(512, 64, 64 * (2 * 64 + 16) + 2 * 16 * 64),  # the best tiles fill it exactly
    Case(768, 32, 24_000),
    Case(320, 16, 1_000_000),  # everything fits
    Case(160, 16, 2923),  # the last tile of queries is smaller
    Case(64, 64, 4 * 16 * 64 + 16 * 16),  # only 16 x 16 fits
    Case(16, 8, 10_000),
]


def observe(choose, case: Case) -> dict:
    n, d, memory, _ = case
    got = choose(n, d, memory)
    two = isinstance(got, tuple | list) and len(got) == 2
    if not two or any(int(size) != size or size % 16 or not 16 <= size <= n for size in got):
        return {"sizes": f"the result is {got!r}"}
    r, c = (int(size) for size in got)
    held = 2 * r * d + 2 * c * d + r * c
    fits = held <= memory
    ends = (min(first + r, n) for first in range(0, n, r))  # keys that a tile's last query sees
    return {
        "fit": "" if fits else f"tiles of {r} × {c} take {held:,} numbers, and there is room for {memory:,}",
        "moved": 2 * n * d + sum(2 * d * min(n, -(-end // c) * c) for end in ends),
    }
