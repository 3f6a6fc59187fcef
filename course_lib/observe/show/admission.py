"""A learner's own rule of admission to a cache in blocks, step by step: what it admits, and the cache drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

from course_lib.observe.show.shown import Shown
from simulator.ledgers.cache import CacheHistory, Piece
from simulator.plots.cache import plot_cache
from simulator.plots.picture import Picture
from simulator.predict.serving import Arrival, blocks_for

Pairs = list[tuple[int, int]]
Admit = Callable[[Pairs, Pairs, int, int], int]


class Served(NamedTuple):
    """What a rule did.

    Args:
        admitted: how many requests it admitted at each step.
        history: the cache, up to the step at which blocks ran out.
        problem: why it ended early, or nothing.
    """

    admitted: list[int]
    history: CacheHistory
    problem: str


def serve_by(admit: Admit, arrivals: Sequence[Arrival], blocks: int, block_size: int) -> Served:
    """Serve by a rule: ``admit(running, waiting, blocks, block_size)`` says how many of those who wait come in.

    Both lists hold a pair for each request: the tokens that it has in the cache (that its prompt has), and the tokens
    that it has there at its last step. A request that is in the cache gets one more token at the beginning of a step.
    """
    queue = sorted(range(len(arrivals)), key=lambda number: arrivals[number].step)
    running: dict[int, int] = {}
    tables: dict[int, list[int]] = {}
    free = list(reversed(range(blocks)))
    admitted, steps, waiting_at = [], [], []
    problem = ""
    while (queue or running) and not problem:
        step = len(steps)
        running = {number: tokens + 1 for number, tokens in running.items()}
        here = [number for number in queue if arrivals[number].step <= step]
        pairs = [(tokens, arrivals[n].cached) for n, tokens in running.items()]
        count = admit(pairs, [(arrivals[n].prompt, arrivals[n].cached) for n in here], blocks, block_size)
        if problem := _refused(count, len(here)):
            break
        admitted.append(int(count))
        for number in here[: int(count)]:
            queue.remove(number)
            running[number] = arrivals[number].prompt
        needed = sum(blocks_for(tokens, block_size) for tokens in running.values())
        if needed > blocks:
            problem = f"step {step}: {needed} blocks are needed, and there are {blocks}"
            break
        if not running and here:
            wait = "1 waits" if len(here) == 1 else f"{len(here)} wait"
            problem = f"step {step}: nothing is in the cache, {wait}, and none is admitted"
            break
        for number, tokens in running.items():
            table = tables.setdefault(number, [])
            while len(table) < blocks_for(tokens, block_size):
                table.append(free.pop())
        steps.append(tuple(sorted(_pieces(running, tables, block_size))))
        waiting_at.append(sum(arrivals[number].step <= step for number in queue))
        for number in [n for n, tokens in running.items() if tokens == arrivals[n].cached]:
            free += tables.pop(number)
            del running[number]
    return Served(admitted, CacheHistory(blocks * block_size, tuple(steps), tuple(waiting_at)), problem)


def draw_admission(
    admit: Admit, arrivals: Sequence[Arrival], blocks: int, block_size: int
) -> Picture | Shown:
    """The cache over time under a learner's rule; what keeps it from being drawn is said in a sentence, not raised."""
    try:
        served = serve_by(admit, arrivals, blocks, block_size)
    except NotImplementedError:
        return _says("The rule is not written yet; run this cell again when it is.")
    except Exception as error:
        return _says(f"Nothing to draw. {type(error).__name__}: {error}")
    if not served.history.steps:
        return _says(f"Nothing to draw. {served.problem}.")
    end = f"ends early: {served.problem}" if served.problem else f"{len(served.history.steps)} steps"
    return plot_cache(served.history, titles=[f"your rule, {end}"])


def _refused(count: Any, waiting: int) -> str:
    try:
        whole = int(count) == count and not isinstance(count, bool)
    except (TypeError, ValueError):
        whole = False
    if whole and 0 <= count <= waiting:
        return ""
    return f"the rule returns {count!r:.40}, where {waiting} wait: not a whole number from 0 to {waiting}"


def _pieces(running: dict[int, int], tables: dict[int, list[int]], size: int) -> list[Piece]:
    return [
        Piece(block * size, size, min(size, tokens - i * size), (number,))
        for number, tokens in running.items()
        for i, block in enumerate(tables[number])
    ]


def _says(sentence: str) -> Shown:
    return Shown(sentence, f"<p>{escape(sentence)}</p>")
