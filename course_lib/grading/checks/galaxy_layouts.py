"""The check of exercise 13.2: the cheapest steps between layouts, one of which the chapter does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from itertools import combinations_with_replacement, count, permutations

from course_lib.grading.report import Report, check
from simulator.predict.layout_steps import LAYOUTS, sent_by_step

Step = tuple[str, str]


def cost(steps: Sequence[Step], p: int) -> Fraction:
    return sum((sent_by_step(*step, p) for step in steps), Fraction(0))


# ---- what is right: every order of steps is tried, the cheapest first ---------------------------------------------


def cheapest(start: frozenset[str], wanted: frozenset[str], p: int, backward: bool) -> list[Step]:
    number = count()
    queue: list[tuple] = [(Fraction(0), 0, next(number), start, [])]
    done = set()
    while queue:
        paid, _, _, have, steps = heappop(queue)
        if (have == wanted) if backward else (have >= wanted):
            return steps
        if have in done:
            continue
        done.add(have)
        for a in have:
            for b in LAYOUTS:
                if a != b and (price := sent_by_step(a, b, p)) is not None:
                    after = (have - {a} if backward else have) | {b}
                    heappush(queue, (paid + price, len(steps) + 1, next(number), after, [*steps, (a, b)]))
    raise AssertionError(f"no steps lead from {sorted(start)} to {sorted(wanted)}")


def after_steps(start: set[str], steps: Sequence[Step], backward: bool) -> set[str] | str:
    """The layouts that are there in the end, or a sentence about the step that cannot be made."""
    have = set(start)
    for a, b in steps:
        if a not in have:
            return f"the step ({a!r}, {b!r}) begins with {a!r}, and there is only {_listed(have)}"
        if sent_by_step(a, b, 2) is None:
            return f"no step leads from {a!r} to {b!r}"
        have = (have - {a} if backward else have) | {b}
    return have


def _reached(end: set[str] | str, goal: set[str], backward: bool) -> bool:
    return not isinstance(end, str) and (end == goal if backward else end >= goal)


def _in_another_order(start: set[str], steps: Sequence[Step], goal: set[str], backward: bool) -> str | None:
    """What helps where the steps are right, and their order is not."""
    ends = (after_steps(start, turned, backward) for turned in permutations(steps[:5]))
    if any(_reached(end, goal, backward) for end in ends):
        return "the steps are right, and their order is not"
    return None


def _listed(layouts: set[str]) -> str:
    return " and ".join(repr(layout) for layout in LAYOUTS if layout in layouts)


# ---- what goes wrong ------------------------------------------------------------------------------------------------

A_STEP = "a pair `(before, after)` of layouts for which `sent_by_step(before, after, p)` is not `None`"
DIRECT = "when each layout has one step of its own, and none is reached through another"


def _needless(steps: Sequence[Step]) -> str | None:
    if any(a == b for a, b in steps):
        return "a layout that is there already needs no step"
    if len(set(steps)) < len(steps):
        return "the same step is made more than once"
    return None


def _through_whole(result: str, readers: list[str], p: int) -> list[Step]:
    others = {layout for layout in readers if layout != result}
    first = [(result, "whole")] if others and result != "whole" else []
    return first + [("whole", layout) for layout in sorted(others - {"whole"})]


def _in_a_chain(result: str, readers: list[str], p: int) -> list[Step]:
    steps, here = [], result
    for layout in dict.fromkeys(readers):
        steps += cheapest(frozenset({here}), frozenset({layout}), p, True)
        here = layout
    return steps


def _through_sum(gradients: list[str], wanted: str, p: int) -> list[Step]:
    if set(gradients) == {wanted}:
        return []
    split = [("whole", "part")] if "whole" in gradients else []
    parts = {"part" if layout == "whole" else layout for layout in gradients} - {"sum"}
    return [*split, *((layout, "sum") for layout in sorted(parts)), ("sum", wanted)]


FORWARD = {
    DIRECT: lambda result, readers, p: [(result, b) for b in sorted(set(readers) - {result})],
    "when every other layout is reached through the whole tensor": _through_whole,
    "when each step begins where the step before it ended": _in_a_chain,
}
BACKWARD = {
    DIRECT: lambda gradients, wanted, p: [(a, wanted) for a in sorted(set(gradients) - {wanted})],
    "when every gradient becomes an addend first": _through_sum,
}


# ---- the check ----------------------------------------------------------------------------------------------------


@check
def check_13_2(
    report: Report,
    forward_steps: Callable[[str, list[str], int], list[Step]],
    backward_steps: Callable[[list[str], str, int], list[Step]],
) -> None:
    for p in (2, 3, 8):
        for readers_of in (1, 2, 3):
            with report.case(f"{p} ranks, {readers_of} reader{'s' * (readers_of > 1)}, forward"):
                _tried(report, list(_forward(readers_of)), forward_steps, p, backward=False)
            with report.case(f"{p} ranks, {readers_of} reader{'s' * (readers_of > 1)}, backward"):
                _tried(report, list(_backward(readers_of)), backward_steps, p, backward=True)


def _forward(readers: int) -> Iterator[tuple[str, list[str]]]:
    for result in LAYOUTS:
        for wanted in combinations_with_replacement(("whole", "part", "slice"), readers):
            yield result, list(wanted)


def _backward(readers: int) -> Iterator[tuple[list[str], str]]:
    """A gradient that every rank has whole cannot become an addend without a decision about who keeps it."""
    for given in combinations_with_replacement(LAYOUTS, readers):
        for wanted in ("whole", "part", "slice"):
            yield list(given), wanted


def _tried(report: Report, questions: list[tuple], answer: Callable, p: int, backward: bool) -> None:
    task = (
        "no layout but `wanted` is left"
        if backward
        else "every layout of `readers` is `result` or the end of a step"
    )
    paid = least = Fraction(0)
    likely = dict.fromkeys(BACKWARD if backward else FORWARD, Fraction(0))
    for question in questions:
        start = set(question[0]) if backward else {question[0]}
        goal = {question[1]} if backward else set(question[1])
        steps = answer(*(list(q) if isinstance(q, list) else q for q in question), p)
        try:
            steps = [(str(a), str(b)) for a, b in steps]
        except (TypeError, ValueError):
            report.fail(
                f"for {question[0]!r} and {question[1]!r} the result is {steps!r}",
                task="Both functions return a list of steps",
            )
        end = after_steps(start, steps, backward)
        asked = f"from {_listed(start)} to {_listed(goal)}"
        if not _reached(end, goal, backward):
            turned = _in_another_order(start, steps, goal, backward)
            if isinstance(end, str):
                broken = A_STEP if end.startswith("no step") else "A step begins with a layout that is there"
                report.fail(f"{asked}: {end}", turned or _needless(steps), task=broken)
            report.fail(f"{asked}: after the steps {steps} there is {_listed(end)}", turned, task=task)
        paid += cost(steps, p)
        for sentence, steps_of in (BACKWARD if backward else FORWARD).items():
            likely[sentence] += cost(steps_of(question[0], question[1], p), p)
        least += cost(cheapest(frozenset(start), frozenset(goal), p, backward), p)
    report.ok(f"{len(questions)} questions: every layout that is wanted is there")
    unit = 64 if p == 8 else 36
    report.at_most(
        f"bytes sent, in {unit}ths of a tensor",
        int(paid * unit),
        int(least * unit),
        mistakes={sentence: int(bytes_of * unit) for sentence, bytes_of in likely.items()},
        task="The steps send as few bytes as possible",
    )
