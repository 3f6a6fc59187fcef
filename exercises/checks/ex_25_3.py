"""25.3: one merge step of WordPiece, and how often it goes through the words."""

import random

from course_checks.counted import CountedDict

from course_lib.grading.judge import Fact, record

FACTS = {
    "pair": Fact("the pair that is merged", "Return the pair of neighbours that is merged."),
    "same": Fact("what is given"),
    "asked": Fact("words looked at beyond one walk", "go through `words` once.", most=0),
}
Case = record("name words", least=1)


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    drawn = {tuple(draw.choices("abcde", k=draw.randint(1, 7))): draw.randint(1, 9) for _ in range(40)}
    task = {("t", "##h", "##e"): 9, ("t", "##o"): 2, ("q", "##u"): 3}
    return [
        Case("a rare pair that is never apart", task),
        Case("a least count", task, 4),
        Case("a pair that stands exactly as often", task, 3),
        Case("no pair stands often enough", task, 10),
        Case("words of one piece", {("a",): 3, ("b",): 1}),
        Case("equal scores", {("c", "d"): 1, ("a", "b"): 1, ("e", "f"): 1}),
        Case("a pair twice in a word", {("a", "b", "a", "b"): 2, ("c", "d"): 3}),
        Case(
            "pieces that are often apart",
            {("a",): 90, ("b",): 90, ("a", "b"): 10, ("c", "d"): 6, ("e", "f"): 2},
        ),
        Case("40 words", drawn, 5),
    ]


def observe(next_merge, case: Case) -> dict:
    words = CountedDict(case.words)
    pair = next_merge(words, case.least)
    same = dict.items(words) == case.words.items()
    return {
        "pair": pair,
        "same": "" if same else "`words` has been changed in place",
        "asked": max(0, words.looked - len(case.words)),
    }
