"""The check of 16.3: admit requests under a budget of blocks without ever running out."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from course_lib.grading.report import Report, check
from course_lib.observe.show.admission import Admit, Pairs, Served, serve_by
from simulator.predict.serving import Arrival, blocks_for

TASK = "At no step may the requests in the cache need more than `blocks` blocks, neither now nor later."
PROGRESS = "Each request fits into the cache alone, so when nothing is running and somebody waits, admit at least one."


class Case(NamedTuple):
    name: str
    arrivals: list[Arrival]
    blocks: int
    size: int


def _drawn(seed: int, count: int, blocks: int, size: int, longest: int) -> list[Arrival]:
    draw = random.Random(seed)
    found = []
    while len(found) < count:
        arrival = Arrival(draw.randint(1, longest // 2), draw.randint(1, longest // 2), 2 * len(found))
        if blocks_for(arrival.cached, size) <= blocks:
            found.append(arrival)
    return found


def _cases(seed: int) -> list[Case]:
    """All but the last are fixed, and any two mistakes below differ in one of these: hints do not hang on the draw."""
    return [
        Case("one request that fills the cache", [Arrival(3, 6)], 2, 4),
        Case("two requests that fit together exactly", [Arrival(4, 5), Arrival(4, 5)], 4, 4),
        Case("two requests that would run out later", [Arrival(4, 5), Arrival(4, 5)], 3, 4),
        Case("two requests begin a block at their last step", [Arrival(4, 2), Arrival(4, 2)], 3, 4),
        Case("the first ends before the second grows", [Arrival(7, 2), Arrival(3, 7, 1)], 4, 4),
        Case(
            "a block becomes free only after the last step",
            [Arrival(8, 1), Arrival(4, 1), Arrival(8, 1)],
            3,
            4,
        ),
        Case("many short requests in blocks of 16", [Arrival(1, 2) for _ in range(12)], 8, 16),
        Case(
            "a long request is first, short ones wait",
            [Arrival(12, 8), Arrival(14, 5), *[Arrival(2, 2)] * 4],
            6,
            4,
        ),
        Case("nobody waits for a while", [Arrival(3, 2), Arrival(3, 2, 9)], 2, 4),
        Case("blocks of 1", _drawn(0, 8, 12, 1, 10), 12, 1),
        Case("20 requests", _drawn(seed, 20, 14, 4, 40), 14, 4),
    ]


@check
def check_16_3(report: Report, admit: Admit) -> None:
    cases = _cases(report.seed())
    served: dict[str, Served] = {}
    for case in cases:  # first all runs: what a rule did in every case is evidence for the likely mistake
        with report.case(case.name):
            served[case.name] = serve_by(admit, *case[1:])
    did = [run.admitted for run in served.values()]
    for case in cases:
        if case.name not in served:
            continue
        with report.case(case.name):
            given, found = case[1:], served[case.name]
            wanted = serve_by(_furthest, *given)
            if "the rule returns" in found.problem:
                report.fail(
                    found.problem, task="Return how many of `waiting` are admitted now, a whole number."
                )
            report.true(
                not found.problem,
                "every request is served, and blocks never run out",
                found.problem,
                got=did,
                mistakes={sentence: partial(_admitted, rule) for sentence, rule in MISTAKES.items()},
                given=(cases,),
                task=PROGRESS if "none is admitted" in found.problem else TASK,
            )
            fewest = len(wanted.history.steps)
            report.at_most(
                "steps more than the fewest",
                len(found.history.steps) - fewest,
                0,
                mistakes={
                    sentence: partial(_steps_more, rule, fewest, did) for sentence, rule in SLOW.items()
                },
                given=(case, cases),
                task="At each step as many are admitted as can be without running out later.",
            )


def _admitted(rule: Admit, cases: list[Case]) -> list[list[int]]:
    return [serve_by(rule, *case[1:]).admitted for case in cases]


def _steps_more(rule: Admit, fewest: int, did: list[list[int]], case: Case, cases: list[Case]) -> int | None:
    """None where the rule does not admit as the answer did in every case: a number of steps is little evidence."""
    return len(serve_by(rule, *case[1:]).history.steps) - fewest if _admitted(rule, cases) == did else None


# ---- the reference, and likely mistakes -----------------------------------------------------------------------------


def _most(running: Pairs, blocks: int, size: int, steps: int | None = None, early: bool = False) -> int:
    """The most blocks that these need together at any of the next steps."""
    horizon = max((last - tokens for tokens, last in running), default=0) + 1
    return max(
        (
            sum(blocks_for(tokens + t, size) for tokens, last in running if tokens + t <= last - early)
            for t in range(horizon if steps is None else min(steps, horizon))
        ),
        default=0,
    )


def _greedy(
    fits: Callable[[Pairs, int, int], bool], running: Pairs, waiting: Pairs, blocks: int, size: int
) -> int:
    count = 0
    while count < len(waiting) and fits([*running, *waiting[: count + 1]], blocks, size):
        count += 1
    return count


def _rule(fits: Callable[[Pairs, int, int], bool]) -> Admit:
    return partial(_greedy, fits)


_furthest = _rule(lambda all_, blocks, size: _most(all_, blocks, size) <= blocks)


def _tokens_only(all_: Pairs, blocks: int, size: int) -> bool:
    horizon = max(last - tokens for tokens, last in all_) + 1
    totals = (sum(n + t for n, last in all_ if n + t <= last) for t in range(horizon))
    return max(totals) <= blocks * size


def _rounded(count: Callable[[int, int], int]) -> Admit:
    def fits(all_: Pairs, blocks: int, size: int) -> bool:
        horizon = max(last - tokens for tokens, last in all_) + 1
        return blocks >= max(
            sum(count(n + t, size) for n, last in all_ if n + t <= last) for t in range(horizon)
        )

    return _rule(fits)


def _until_these_end(running: Pairs, waiting: Pairs, blocks: int, size: int) -> int:
    steps = max((last - tokens for tokens, last in running), default=0) + 1
    return _greedy(
        lambda a, blocks, size: _most(a, blocks, size, steps) <= blocks, running, waiting, blocks, size
    )


def _last_step_of_newcomer(running: Pairs, waiting: Pairs, blocks: int, size: int) -> int:
    def fits(all_: Pairs, blocks: int, size: int) -> bool:
        t = all_[-1][1] - all_[-1][0]
        return sum(blocks_for(n + t, size) for n, last in all_ if n + t <= last) <= blocks

    return _greedy(fits, running, waiting, blocks, size)


def _held_too_long(all_: Pairs, blocks: int, size: int) -> bool:
    horizon = max(last - tokens for tokens, last in all_) + 2
    held = (
        sum(blocks_for(min(n + t, last), size) for n, last in all_ if n + t <= last + 1)
        for t in range(horizon)
    )
    return max(held) <= blocks


def _newcomer_as_now(running: Pairs, waiting: Pairs, blocks: int, size: int) -> int:
    free, count = blocks - sum(blocks_for(last, size) for _, last in running), 0
    for tokens, _ in waiting:
        free -= blocks_for(tokens, size)
        if free < 0:
            break
        count += 1
    return count


def _newcomer_in_full(running: Pairs, waiting: Pairs, blocks: int, size: int) -> int:
    used, count = sum(blocks_for(tokens, size) for tokens, _ in running), 0
    for _, last in waiting:
        used += blocks_for(last, size)
        if used > blocks:
            break
        count += 1
    return count


def _passing_over(running: Pairs, waiting: Pairs, blocks: int, size: int) -> int:
    fitting = list(running)
    for pair in waiting:
        if _most([*fitting, pair], blocks, size) <= blocks:
            fitting.append(pair)
    return len(fitting) - len(running)


MISTAKES: dict[str, Admit] = {
    "when only the blocks of the present step are counted": _rule(
        lambda a, blocks, size: _most(a, blocks, size, 1) <= blocks
    ),
    "when only the present step and the next one are looked at": _rule(
        lambda a, blocks, size: _most(a, blocks, size, 2) <= blocks
    ),
    "when slots are counted and not blocks, though a block belongs to one request alone": _rule(_tokens_only),
    "when newcomers count with all their blocks, and those in the cache with their present ones": _newcomer_in_full,
    "when the blocks of a request count as free at its last step already": _rule(
        lambda a, blocks, size: _most(a, blocks, size, early=True) <= blocks
    ),
    "when the last step is not looked at": _rule(
        lambda a, blocks, size: _most(a, blocks, size, max(1, *(last - n for n, last in a))) <= blocks
    ),
    "when the blocks that are needed must be fewer than there are, and not at most as many": _rule(
        lambda a, blocks, size: _most(a, blocks, size) < blocks
    ),
    "when somebody who does not fit is passed over, and a later one is counted in their place": _passing_over,
    "when the blocks of a request are rounded down": _rounded(lambda n, size: n // size),
    "when a request whose last block is full counts with one block more": _rounded(
        lambda n, size: n // size + 1
    ),
    "when the steps after the end of those in the cache are not looked at": _until_these_end,
    "when only the last step of each newcomer is looked at": _last_step_of_newcomer,
    "when newcomers count with their present blocks, and those in the cache with all of theirs": _newcomer_as_now,
    "when at least one is always admitted, whether or not it fits": lambda running, waiting, blocks, size: (
        max(min(1, len(waiting)), _furthest(running, waiting, blocks, size))
    ),
    "when all who wait are admitted": lambda running, waiting, blocks, size: len(waiting),
    "when nobody is ever admitted": lambda running, waiting, blocks, size: 0,
}
SLOW: dict[str, Admit] = {
    "when every request counts with all the blocks of its last step from the beginning": _rule(
        lambda a, blocks, size: sum(blocks_for(last, size) for _, last in a) <= blocks
    ),
    "when only one request at a time is in the cache": lambda running, waiting, blocks, size: int(
        not running and bool(waiting)
    ),
    "when nobody comes in before all in the cache have ended": lambda running, waiting, blocks, size: (
        0 if running else _furthest(running, waiting, blocks, size)
    ),
    "when the blocks of a request count as used for one step after its last one": _rule(_held_too_long),
    "when at most one request comes in at a step": lambda running, waiting, blocks, size: min(
        1, _furthest(running, waiting, blocks, size)
    ),
}
