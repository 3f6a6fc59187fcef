"""25.3: one merge step of WordPiece, and how often it goes through the words."""

import random

from course_checks.counted import CountedDict

from course_lib.grading.judge import Fact, record

FACTS = {
    "pair": Fact("the pair that is merged", "Return the pair of neighbours that is merged."),
    "same": Fact("what is given", "`words` stays as it is."),
    "asked": Fact("words looked at beyond one walk", "go through `words` once.", most=0),
}
Case = record("name words", least=1, task=None)
TWICE = "A piece or a pair that stands in a word twice counts twice."
TIED = {"e f": 1, "ab c": 4, "a z": 3, "g h": 1, "b d": 5, "a": 7, "ab": 1, "c": 4, "f": 9, "h": 9, "d": 5}
APART = {"d": 7, "fba": 5, "abcb": 2, "ded": 4, "fagg": 1, "b": 6}


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    drawn = {tuple(draw.choices("abcde", k=draw.randint(1, 7))): draw.randint(1, 9) for _ in range(40)}
    tied = {tuple(word.split()): n for word, n in TIED.items()}  # 4 / 5 / 8 is not 3 / 10 / 3, by rounding
    example = {("t", "##h", "##e"): 9, ("t", "##o"): 2, ("q", "##u"): 3}
    return [
        Case("a rare pair that is never apart", example),
        Case("a least count", example, 4),
        Case("a pair that stands exactly as often", example, 3),
        Case("no pair stands often enough", example, 10, "return None if none is left"),
        Case("words of one piece", {("a",): 3, ("b",): 1}),
        Case("equal scores", tied, task="Of equal scores the first in `sorted(pairs)` wins."),
        Case("a pair twice in a word", {("a", "b", "a", "b"): 2, ("c", "d"): 3}),
        Case("a pair that is often enough within words", {("a", "b", "a", "b"): 2, ("c", "d"): 3}, 4, TWICE),
        Case("a pair that is often enough over words", {("a", "b"): 3, ("c", "a", "b"): 2}, 4),
        Case("pieces that are often apart", {tuple(word): n for word, n in APART.items()}, 2),
        Case("40 words", drawn, 5),
    ]


def observe(next_merge, case: Case) -> dict:
    words = CountedDict(case.words)
    pair = next_merge(words, case.least)
    changed = "" if dict.items(words) == case.words.items() else "`words` has been changed in place"
    return {"pair": pair, "same": changed, "asked": max(0, words.looked - len(case.words))}
