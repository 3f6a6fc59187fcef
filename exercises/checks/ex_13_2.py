"""13.2: the cheapest steps between layouts, one of which the chapter does not have."""

from collections.abc import Iterator
from copy import copy
from fractions import Fraction
from itertools import combinations_with_replacement, permutations, product

from course_checks.on_ranks import count

from course_lib.grading.judge import Fact, record
from simulator.predict.layout_steps import LAYOUTS, sent_by_step

FACTS = {
    "list": Fact("the result", "Both functions return a list of steps, in the order in which they are made."),
    "pair": Fact("the steps", "A step is a pair `(before, after)` of layouts for which…"),
    "begins": Fact("the steps", "A step begins with a layout that is there"),
    "readers": Fact("the end", "every layout of `readers` is `result` or the end of a step."),
    "wanted": Fact("the end", "After all steps no layout but `wanted` is left."),
    "bytes": Fact("bytes sent beyond the fewest, in 36ths of a tensor", "The steps…", most=0, beyond=True),
}

Case = record(
    "ranks readers backward",
    lambda c: f"{c.ranks} ranks, {count(c.readers, 'reader')}, {'backward' if c.backward else 'forward'}",
)
CASES = [Case(*case, back) for case in ((2, 1), (3, 1), (3, 2), (3, 3), (2, 3)) for back in (False, True)]


def questions(case: Case) -> Iterator[tuple]:
    """A gradient that is whole cannot become an addend without a decision on who keeps it, so none shall."""
    plain = ("whole", "part", "slice")
    if case.backward:
        many = combinations_with_replacement(LAYOUTS, case.readers)
        return ((list(given), wanted) for given in many for wanted in plain)
    many = list(product(plain, repeat=case.readers))
    return ((result, list(readers)) for result in reversed(LAYOUTS) for readers in many)


def observe(answer, case: Case) -> dict:
    paid = Fraction(0)
    for first, second in questions(case):
        start, goal = (set(first), {second}) if case.backward else ({first}, set(second))
        asked = f"from {listed(start)} to {listed(goal)}: "
        steps = answer[case.backward](*map(copy, (first, second)), case.ranks)
        try:
            steps = [(str(a), str(b)) for a, b in steps]
        except (TypeError, ValueError):
            return {"list": f"{asked}the result is {steps!r:.80}"}
        key, said = problem(start, goal, steps, case.backward)
        if said:
            orders = permutations(steps[:5])
            if any(not problem(start, goal, turned, case.backward)[1] for turned in orders):
                said += "\nThe steps are right, and their order is not."
            return {key: asked + said}
        paid += sum(sent_by_step(*step, case.ranks) for step in steps)
    return {"bytes": int(36 * paid)}


def problem(start: set[str], goal: set[str], steps, backward: bool) -> tuple[str, str]:
    """(what is wrong, a sentence about it), the sentence empty where every layout that is wanted is there."""
    have = set(start)
    for before, after in steps:
        if before not in have:
            return "begins", f"the step {before, after} begins with {before!r}, and there is {listed(have)}"
        if before not in LAYOUTS or after not in LAYOUTS or sent_by_step(before, after, 2) is None:
            return "pair", f"no step leads from {before!r} to {after!r}"
        have = (have - {before} if backward else have) | {after}
    there = have == goal if backward else have >= goal
    return "wanted" if backward else "readers", "" if there else f"in the end there is {listed(have)}"


def listed(layouts: set[str]) -> str:
    return " and ".join(repr(layout) for layout in LAYOUTS if layout in layouts)
