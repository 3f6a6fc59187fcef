"""The check of 18.5: the longest prompt and the longest prefix for which a server has room."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from course_lib.grading.report import Report, check

Longest = Callable[["Shape", int, int, int, float], dict[str, int]]

LINES = 200
TARGET = "At most 200 lines of Python run in one call of `longest`, however many positions the model has."
FITS = "it finds the largest number n of virtual tokens that fits, once for prompt tuning and once for prefix tuning"
POSITIONS = "n + `seq` may be at most `shape.positions`."
WIDTH = "In each layer a token has a key and a value of `shape.kv_heads` · `shape.head_size` numbers each."
BYTES = "Every number takes 2 bytes."
TEXT = "The text of each request has `seq` tokens, whose keys and values are in the cache."
PROMPT = "each task has n embeddings. The model computes keys and values of the virtual tokens as it does for text, and each request keeps its own in the cache (this server does not share them)."  # noqa: E501
PREFIX = "each task has the keys and values of n virtual tokens, which all requests of this task read. The cache holds nothing more for them."  # noqa: E501
NONE = "Where not even one virtual token fits, the number is 0."


class Shape(NamedTuple):
    """A decoder: ``hidden`` numbers in an embedding, ``kv_heads`` heads of keys and values of ``head_size`` numbers."""

    layers: int
    hidden: int
    kv_heads: int
    head_size: int
    positions: int


LLAMA_2_7B = Shape(32, 4096, 32, 128, 4096)
LLAMA_3_8B = Shape(32, 4096, 8, 128, 8192)

CASES = (
    ("Llama-2-7B, 20 tasks, 8 requests of 500 tokens, 4 GB", LLAMA_2_7B, 20, 8, 500, 4_000_000_000),
    ("Llama-3-8B, 20 tasks, 8 requests of 500 tokens, 4 GB", LLAMA_3_8B, 20, 8, 500, 4_000_000_000),
    ("one task, one request", LLAMA_2_7B, 1, 1, 100, 100_000_000),
    ("many tasks, one request", LLAMA_3_8B, 500, 1, 200, 2_000_000_000),
    ("one task, many requests", LLAMA_3_8B, 1, 64, 400, 5_000_000_000),
    ("more room than positions", LLAMA_2_7B, 2, 1, 4000, 80_000_000_000),
    ("the text takes all positions", LLAMA_2_7B, 1, 1, 4096, 80_000_000_000),
    ("exactly 7 virtual tokens of a prefix", LLAMA_3_8B, 3, 2, 10, 2 * 10 * 131072 + 3 * 7 * 131072),
    (
        "exactly 5 virtual tokens of a prompt",
        LLAMA_3_8B,
        3,
        2,
        10,
        2 * 10 * 131072 + 5 * (3 * 8192 + 2 * 131072),
    ),
    ("one byte less than one virtual token", LLAMA_3_8B, 2, 2, 10, 2 * 10 * 131072 + 2 * 131072 - 1),
    ("no room for the text's own cache", LLAMA_2_7B, 1, 4, 1000, 1_000_000_000),
)


@check
def check_18_5(report: Report, longest: Longest) -> None:
    for name, *given in CASES:
        _case(report, name, longest, tuple(given))
    draw = random.Random(report.seed())
    for i in range(3):
        shape = Shape(
            draw.choice((12, 32, 80)), draw.choice((768, 4096, 8192)), draw.choice((2, 8, 12)), 64, 2048
        )
        tasks, requests, seq = draw.randint(2, 50), draw.randint(2, 40), draw.randint(1, 900)
        spare = (
            draw.randint(1, 300) * shape.layers * shape.kv_heads * 64 * 4 * draw.choice((1, tasks, requests))
        )
        room = requests * seq * shape.layers * shape.kv_heads * 64 * 4 + spare
        _case(report, f"a drawn case, {i + 1} of 3", longest, (shape, tasks, requests, seq, room))


def _case(report: Report, name: str, longest: Longest, given: tuple[Any, ...]) -> None:
    with report.case(name):
        got, lines = _lines_run(longest, given)
        if not isinstance(got, dict) or set(got) != {"prompt", "prefix"}:
            report.fail(f"the result is {got!r}", task='Return a dict with the keys "prompt" and "prefix"')
        right = _right(*given)
        shape, *_, seq, _ = given
        for method in ("prompt", "prefix"):
            report.equal(
                f"the longest {method}",
                got[method],
                right[method],
                mistakes={s: (lambda *g, m=method, p=p: p(*g)[m]) for s, p in MISTAKES.items()},
                given=given,
                task=_violated(got[method], right[method], shape.positions - seq),
                tasks=VIOLATED,
            )
        report.at_most("lines of Python", max(lines, LINES), LINES, task=TARGET)


def _violated(got: Any, right: int, most: int) -> str:
    """The sentence of the task that speaks of this difference."""
    if isinstance(got, (int, float)) and got > most:
        return POSITIONS
    return FITS if right else NONE


def _lines_run(longest: Longest, given: tuple[Any, ...]) -> tuple[Any, int]:
    """What ``longest`` returns, and how many lines of Python have run in it."""
    lines, before = 0, sys.gettrace()

    def trace(frame: Any, event: str, _: Any) -> Callable[..., Any]:
        nonlocal lines
        lines += event == "line"
        return trace

    sys.settrace(trace)
    try:
        return longest(*given), lines
    finally:
        sys.settrace(before)


def _right(
    shape: Shape,
    tasks: int,
    requests: int,
    seq: int,
    room: float,
    *,
    both: int = 2,
    width: int | None = None,
    number: int = 2,
    text: str = "requests",
    prompt_cache: str = "requests",
    prefix_cache: str = "tasks",
    files: str = "tasks",
    limited: bool = True,
    clamp: bool = True,
    rounded: Callable[[int, int], float] = int.__floordiv__,
    positions: int | None = None,
    layers: int | None = None,
    vectors: int = 1,
    cached_width: int | None = None,
) -> dict[str, float]:
    width = shape.kv_heads * shape.head_size if width is None else width
    token = both * (shape.layers if layers is None else layers) * width * number
    many = {"tasks": tasks, "requests": requests, "none": 0, "both": tasks + requests, "one": 1}
    left = int(room) - many[text] * seq * token
    most = shape.positions - seq if positions is None else positions
    each = {
        "prompt": many[files] * vectors * shape.hidden * number + many[prompt_cache] * token,
        "prefix": many[prefix_cache] * token * (cached_width or width) // width,
    }
    found = {}
    for method, size in each.items():
        n = rounded(left, size)
        n = min(n, most) if limited else n
        found[method] = max(0, n) if clamp else n
    return found


def _mistake(**settings: Any) -> Callable[..., dict[str, float]]:
    return lambda *given: _right(*given, **settings)


def _exchanged(*given: Any) -> dict[str, float]:
    right = _right(*given)
    return {"prompt": right["prefix"], "prefix": right["prompt"]}


MISTAKES: dict[str, Callable[..., dict[str, float]]] = {
    "when only keys count, and no values": _mistake(both=1),
    "when keys and values are as wide as `hidden`": lambda *given: _right(*given, width=given[0].hidden),
    "when a number takes 4 bytes": _mistake(number=4),
    "when a number takes 1 byte": _mistake(number=1),
    "when keys and values of one layer alone count": _mistake(layers=1),
    "when the text's own cache is left out": _mistake(text="none"),
    "when the text of one request alone is kept": _mistake(text="one"),
    "when the text is kept once for each task": _mistake(text="tasks"),
    "when n is rounded up": _mistake(rounded=lambda left, size: -(-left // size)),
    "when n is rounded to the nearest whole number": _mistake(rounded=lambda left, size: round(left / size)),
    "when n is not rounded": _mistake(rounded=lambda left, size: left / size),
    "when virtual tokens that take exactly the bytes that are left do not count as fitting": _mistake(
        rounded=lambda left, size: (left - 1) // size
    ),
    "when positions limit n, and not n + `seq`": lambda *given: _right(*given, positions=given[0].positions),
    "when positions limit n + `seq` to one less": lambda *given: _right(
        *given, positions=given[0].positions - given[3] - 1
    ),
    "when the prompt's keys and values are left out, and only its vectors count": _mistake(
        prompt_cache="none"
    ),
    "when the prompt's keys and values are kept once for each task": _mistake(prompt_cache="tasks"),
    "when the prefix is kept once for each request": _mistake(prefix_cache="requests"),
    "when the prefix is kept once for each task and again for each request": _mistake(prefix_cache="both"),
    "when the prefix's keys and values are as wide as `hidden`": lambda *given: {
        "prompt": _right(*given)["prompt"],
        "prefix": _right(*given, cached_width=given[0].hidden)["prefix"],
    },
    "when the prefix of one task alone is kept": _mistake(prefix_cache="one"),
    "when the prompt's own vectors are left out": _mistake(files="none"),
    "when the prompt of one task alone is kept": _mistake(files="one"),
    "when the prompt's own vectors are kept once for each request": _mistake(files="requests"),
    "when the prompt has vectors in every layer": lambda *given: _right(*given, vectors=given[0].layers),
    "when the prompt's own vectors count twice, as keys and as values": _mistake(vectors=2),
    "when the trained vectors of one task alone are kept": _mistake(files="one", prefix_cache="one"),
    "when the two results are exchanged": _exchanged,
    "when positions do not limit n": _mistake(limited=False),
    "when a negative number is returned where nothing fits": _mistake(clamp=False),
}
_BULLETS = {
    "when only keys": WIDTH,
    "when keys and values": WIDTH,
    "when a number": BYTES,
    "when the text": TEXT,
    "when the trained vectors": "These bytes hold the trained vectors of all `tasks`",
    "when positions": POSITIONS,
    "when the prompt": PROMPT,
    "when the prefix": PREFIX,
    "when a negative number": NONE,
}
VIOLATED = {
    sentence: task for begin, task in _BULLETS.items() for sentence in MISTAKES if sentence.startswith(begin)
}
