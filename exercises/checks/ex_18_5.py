"""18.5: the longest prompt and the longest prefix for which a server has room, and the lines run to find them."""

import random
from typing import NamedTuple

from course_checks.counted import lines_run

from course_lib.grading.judge import Fact, record

FACTS = {
    "dict": Fact("the result", 'Return a dict with the keys "prompt" and "prefix" and the largest n of…'),
    "longest": Fact("the longest {}", "it finds the largest number n of virtual tokens that fits, once for…"),
    "lines": Fact(
        "lines of Python run in one call, counted to 201",  # what is slow in another style is known, too
        "At most 200 lines of…",
        most=200,
    ),
}
POSITIONS = "n + `seq` may be at most `shape.positions`."
NONE = "Where not even one virtual token fits, the number is 0."


class Shape(NamedTuple):
    """A decoder: ``hidden`` numbers in an embedding, ``kv_heads`` heads of keys and values of ``head_size`` numbers."""

    layers: int
    hidden: int
    kv_heads: int
    head_size: int
    positions: int


# given: shape, tasks, requests, seq, room
Case = record("name given", task=None)

SMALL, LARGE = Shape(32, 4096, 8, 128, 8192), Shape(32, 4096, 32, 128, 4096)  # Llama-3-8B, Llama-2-7B
TOKEN = 131072  # bytes of a token's keys and values in all layers of the first


def cases(seed: int) -> list[Case]:
    prompts, prefixes = 20 * TOKEN + 5 * (3 * 8192 + 2 * TOKEN), 20 * TOKEN + 7 * 3 * TOKEN
    listed = [
        Case("Llama-2-7B, 20 tasks, 8 requests of 500 tokens, 4 GB", (LARGE, 20, 8, 500, 4_000_000_000)),
        Case("Llama-3-8B, 20 tasks, 8 requests of 500 tokens, 4 GB", (SMALL, 20, 8, 500, 4_000_000_000)),
        Case("one task, one request", (LARGE, 1, 1, 100, 100_000_000)),
        Case("many tasks, one request", (SMALL, 500, 1, 200, 2_000_000_000)),
        Case("one task, many requests", (SMALL, 1, 64, 400, 5_000_000_000)),
        Case("more room than positions", (LARGE, 2, 1, 4000, 80_000_000_000), POSITIONS),
        Case("the text takes all positions", (LARGE, 1, 1, 4096, 80_000_000_000), POSITIONS),
        Case("exactly 7 virtual tokens of a prefix", (SMALL, 3, 2, 10, prefixes)),
        Case("exactly 5 virtual tokens of a prompt", (SMALL, 3, 2, 10, prompts)),
        Case("one byte less than one virtual token", (SMALL, 2, 2, 10, 22 * TOKEN - 1), NONE),
        Case("no room for the text's own cache", (LARGE, 1, 4, 1000, 1_000_000_000), NONE),
    ]
    draw = random.Random(seed)
    for i in range(3):
        layers, hidden, heads = (draw.choice(of) for of in ((12, 32, 80), (768, 4096, 8192), (2, 8, 12)))
        tasks, requests, seq = draw.randint(2, 50), draw.randint(2, 40), draw.randint(1, 900)
        spare = draw.randint(1, 300) * draw.choice((1, tasks, requests))  # tokens
        room = 4 * layers * heads * 64 * (requests * seq + spare)
        given = Shape(layers, hidden, heads, 64, 2048), tasks, requests, seq, room
        listed.append(Case(f"a drawn case, {i + 1} of 3", given))
    return listed


def observe(longest, case: Case) -> dict:
    got, lines = lines_run(FACTS["lines"].most, longest, *case.given)
    if not isinstance(got, dict) or got.keys() != {"prompt", "prefix"}:
        return {"dict": f"the result is {got!r:.80}"}
    return {"longest": {method: got[method] for method in ("prompt", "prefix")}, "lines": lines}
