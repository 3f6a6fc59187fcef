"""25.1: the likeliest cut of a word, and how often the table of pieces is asked."""

import random

from course_checks.counted import CountedDict

from course_lib.grading.judge import Fact, record

FACTS = {
    "form": Fact("the result", "return the pieces of the likeliest cut, in order, and its log probability"),
    "cut": Fact("the cut", "the pieces of the likeliest cut, in order"),
    "score": Fact("its log probability", "and its log probability", tolerance=1e-9),
    "none": Fact("a word without a cut", "For a word that no pieces make, return `([], -math.inf)`."),
    "asked": Fact("pieces looked up beyond n (n + 1) / 2", "look up at most n (n + 1) / 2 pieces…", most=0),
}

Case = record("name word log_p", has_cut=True)


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    pieces = {*"abc", *("".join(draw.choices("abc", k=draw.randint(2, 4))) for _ in range(15))}
    drawn = {piece: draw.uniform(-7, -2) for piece in sorted(pieces)}
    letters = "".join(draw.choices("abc", k=9))
    return [
        Case("the longest piece first is not the likeliest", "abc", {"ab": -2, "c": -7, "a": -2, "bc": -2}),
        Case("one piece is the whole word", "lower", {"lower": -5, "lowe": -3, "low": -3, "er": -3, "r": -3}),
        Case("more pieces are likelier than fewer", "abab", {"ab": -0.7, "abab": -2, "a": -2, "b": -2}),
        Case("nine letters, drawn", letters, drawn),
        Case("the first letters have no cut", "xyz", {"xy": -2, "z": 0, "yz": -1, "y": -2}),
        Case("no piece for the last letter", "low", {"l": -0.7, "o": -0.7, "lo": -2}, has_cut=False),
        Case("eighteen letters", "ab" * 9, {"a": -3, "b": -2, "ab": -1.7, "ba": -1}),
    ]


def observe(likeliest_cut, case: Case) -> dict:
    table = CountedDict(case.log_p)
    got = likeliest_cut(case.word, table)
    if not isinstance(got, tuple | list) or len(got) != 2 or isinstance(got[0], str | int | float | None):
        return {"form": f"the result is {got}, and not a list of pieces and a number"}
    pieces, score = got
    n = len(case.word)
    return {
        "cut": list(pieces) if case.has_cut else [],
        "score": float(score) if case.has_cut else 0.0,
        "none": "" if case.has_cut else f"{list(pieces)}, {score}",
        "asked": max(0, table.looked - n * (n + 1) // 2),
    }
