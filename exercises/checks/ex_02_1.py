"""02.1: one merge step of BPE, and its encoder on merges that count how often they are looked into."""

import random
from itertools import product

from course_checks.counted import CountedDict

from course_lib.grading.judge import Fact, record

FACTS = {
    "form": Fact("the result", "Return `(pair, words)`"),
    "pair": Fact("the pair that stands most often", "Choose the pair that stands most often; where several…"),
    "words": Fact("the words after the merge", "replaced by the id `new`, from left to right"),
    "ids": Fact("the encoded ids", "it merges the pair that was learned first"),
    "same": Fact("what is given"),
    "looks": Fact("look-ups in `merges` beyond 2 n²", "`encode` looks into `merges` at most 2 n²…", most=0),
}
NEW = 50

# words: for merge_once: how often each word stands in the text; ids: for encode
Case = record("name", words=None, ids=None, merges=None)


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    few, many = (
        {tuple(draw.choices(range(k), k=draw.randint(1, 9))): draw.randint(1, 4) for _ in range(n)}
        for k, n in ((3, 30), (5, 40))
    )
    chain = {(10, 11): 12, (1, 0): 13, (0, 1): 11, (9, 9): 10, (0, 0): 9}  # not as they were learned
    overlap = {(1, 2): 9, (0, 1): 10, (2, 3): 11, (9, 3): 12, (1, 11): 13, (0, 9): 14}
    letters, made = list(product(range(4), repeat=2)), list(product(range(4, 20), range(20)))
    pairs = draw.sample(letters, 16) + draw.sample(made, 44) + [(i, i + 1) for i in range(100, 3100)]
    learned = {pair: i for i, pair in enumerate(pairs, 4)}
    return [
        Case("a tie between pairs", {(2, 1): 3, (0, 5): 3, (4, 3): 3}),
        Case("a frequent word", {(0, 1): 2, (1, 1, 2): 1, (1, 2): 1, (3, 3): 4, (5, 6, 7, 5, 6): 3}),
        Case("three equal ids against two", {(0, 0, 0): 2, (1, 2): 3}),
        Case("words of one id", {(4,): 7, (1,): 2}),
        Case("no words", {}),
        Case("30 random words of 3 letters", few),
        Case("40 random words of 5 letters", many),
        Case("no ids", ids=[], merges=chain),
        Case("no pair that was learned", ids=[3, 4, 3], merges=chain),
        Case("five equal ids", ids=[0] * 5, merges=chain),
        Case("merges of merges", ids=[0, 0, 0, 0, 0, 1], merges=chain),
        Case("a later merge stands first", ids=[1, 0, 0, 1], merges=chain),
        Case("merges that overlap", ids=[0, 1, 2, 3], merges=overlap),
        Case("25 ids and 3,060 merges", ids=draw.choices(range(4), k=25), merges=learned),
    ]


def observe(answers, case: Case) -> dict:
    merge_once, encode = answers
    if case.ids is None:
        given = dict(case.words)
        got = merge_once(given, NEW)
        if not isinstance(got, tuple | list) or len(got) != 2:
            return {"form": f"the result is {type(got).__name__}, not the pair `(pair, words)`"}
        changed = "`words` has been changed in place" if given != case.words else ""
        return {"pair": got[0], "words": got[1], "same": changed}
    ids, merges = list(case.ids), CountedDict(case.merges)
    got = encode(ids, merges)
    looks = max(0, merges.looked - 2 * len(case.ids) ** 2)
    changed = "" if ids == case.ids and dict.items(merges) == case.merges.items() else "`ids` or `merges`"
    return {"ids": got, "same": changed and f"{changed} has been changed in place", "looks": looks}
