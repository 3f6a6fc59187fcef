"""25.1: the likeliest cut of a word, and how often the table of pieces is asked."""

import math
import random

from course_checks.counted import CountedDict

from course_lib.grading.judge import Fact, record

FACTS = {
    "cut": Fact("the cut", "the pieces of the likeliest cut, in order"),
    "score": Fact("its log probability", "and its log probability", tolerance=1e-9),
    "none": Fact("a word without a cut", "For a word that no pieces make, return `([], -math.inf)`."),
    "asked": Fact("pieces looked up beyond n (n + 1) / 2", "look up at most n (n + 1) / 2 pieces…", most=0),
}

Case = record("name word log_p", has_cut=True)


def logs(**shares: float) -> dict[str, float]:
    return {piece: math.log(p) for piece, p in shares.items()}


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    pieces = {*"abc", *("".join(draw.choices("abc", k=draw.randint(2, 4))) for _ in range(15))}
    drawn = {piece: math.log(draw.uniform(0.001, 0.1)) for piece in sorted(pieces)}
    letters = "".join(draw.choices("abc", k=9))
    return [
        Case("the longest piece first is not the likeliest", "abcd", logs(abc=0.2, d=0.001, ab=0.2, cd=0.2)),
        Case("one piece is the whole word", "low", logs(low=0.01, l=0.05, o=0.05, w=0.05)),
        Case("more pieces are likelier than fewer", "abab", logs(ab=0.5, abab=0.1, a=0.1, b=0.1)),
        Case("nine letters, drawn", letters, drawn),
        Case("the first letters have no cut", "xyz", logs(xy=0.1, z=0.1, yz=0.3, y=0.2)),
        Case("no piece for the last letter", "low", logs(l=0.5, o=0.5, lo=0.2), has_cut=False),
        Case("eighteen letters", "ab" * 9, logs(a=0.1, b=0.1, ab=0.2, ba=0.3)),
    ]


def observe(likeliest_cut, case: Case) -> dict:
    table = CountedDict(case.log_p)
    pieces, score = likeliest_cut(case.word, table)
    n = len(case.word)
    return {
        "cut": list(pieces) if case.has_cut else [],
        "score": float(score) if case.has_cut else 0.0,
        "none": "" if case.has_cut else f"{list(pieces)}, {score}",
        "asked": max(0, table.looked - n * (n + 1) // 2),
    }
