"""25.4: GLM's blanks with their two places, and the lines of Python that it takes."""

import random

from course_checks.counted import lines_run

from course_lib.grading.judge import Fact, record

FOUND = {
    "inputs": "GLM reads a text with a mask for each span, and writes the spans behind it, in `order`.",
    "targets": "A span's inputs begin with `[S]`, and its targets end with `[E]`.",
    "first": "A span's `first` is the place of its mask.",
    "second": "A span's `second` begins with 1; in the text it is 0.",
    "prefix": "`prefix` is the length of the text with masks…",
}
FACTS = {
    "form": Fact("the result", "return `(inputs, targets, first, second, prefix)`"),
    **{name: Fact(f"`{name}`", task) for name, task in FOUND.items()},
    "same": Fact("what is given", "What is given stays as it is."),
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
    got, lines = lines_run(5 * (most := 12 * len(case.tokens) + 100), blanks, *given)
    if not isinstance(got, tuple | list) or len(got) != len(FOUND):
        return {"form": f"the result is {type(got).__name__}, not five things"}
    changed = "" if given == (case.tokens, case.spans, case.order) else "an argument was changed in place"
    return dict(zip(FOUND, got, strict=True)) | {"same": changed, "lines": max(0, lines - most)}
