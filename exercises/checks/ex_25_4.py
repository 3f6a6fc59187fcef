"""25.4: GLM's blanks with their two places, and the lines of Python that it takes."""

import random

from course_checks.counted import lines_run

from course_lib.grading.judge import Fact, record

NAMES = ["inputs", "targets", "first", "second", "prefix"]
FACTS = {
    "form": Fact("the result", "return `(inputs, targets, first, second, prefix)`"),
    "found": Fact("`{}`", "A span's `first` is the place of its mask."),
    "same": Fact("what is given"),
    "lines": Fact("lines of Python beyond 12 for each token", "at most 12 lines of Python for…", most=0),
}
Case = record("name tokens spans order")


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    cuts = sorted(draw.sample(range(2000), 400))
    many, order = list(zip(cuts[::2], cuts[1::2], strict=True)), draw.sample(range(200), 200)
    return [
        Case("two spans, the last one first", list("abcde"), [(1, 2), (3, 5)], [1, 0]),
        Case("three spans, out of order", list("the cat sat"), [(0, 2), (4, 5), (8, 11)], [2, 0, 1]),
        Case("spans that touch", list("abcdef"), [(1, 3), (3, 4)], [0, 1]),
        Case("all is one span", list("abc"), [(0, 3)], [0]),
        Case("no spans", list("ab"), [], []),
        Case("2,000 tokens and 200 spans", [f"w{i % 7}" for i in range(2000)], many, order),
    ]


def observe(blanks, case: Case) -> dict:
    given = [*case.tokens], [*case.spans], [*case.order]
    got, lines = lines_run(most := 12 * len(case.tokens) + 100, blanks, *given)
    same = given == (case.tokens, case.spans, case.order)
    fits = isinstance(got, tuple | list) and len(got) == len(NAMES)
    return {
        "form": "" if fits else f"the result is {type(got).__name__}, not five things",
        "found": dict(zip(NAMES, got, strict=True)) if fits else {},
        "same": "" if same else "what is given has been changed in place",
        "lines": max(0, lines - most),
    }
