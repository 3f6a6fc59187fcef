"""13.4: bytes of the four ways, and from how many tokens on one sends fewer than tensor parallelism."""

import random

from course_checks.counted import lines_run

from course_lib.grading.judge import Fact, record

FACTS = {
    "inference": Fact("the bytes of {} in inference", "returns the bytes that each of `p`…", tolerance=1e-9),
    "training": Fact("the bytes of {} in training", "With `training` the layer runs…", tolerance=1e-9),
    "fewest": Fact("the tokens from which on {} sends fewer bytes than tp", "returns the smallest whole…"),
    "lines": Fact("lines of Python run by `fewest_tokens`, for a hidden size of 30,000", "it runs at most…", most=2000),
}  # fmt: skip

# columns: of each way
Case = record("ranks tokens hidden columns", lambda c: f"{c.ranks} ranks")


def cases(seed: int) -> list[Case]:
    draw, found = random.Random(seed), []
    for p in (2, 3, 4, 8):
        tokens, hidden, columns = (p * draw.randrange(2, most) for most in (60, 40, 90))
        # with so many columns some whole number of tokens sends just as many bytes as tp
        equal = {"tp": 2 * hidden, "sp": 3 * hidden, "galaxy": 4 * hidden, "galaxy2": 4 * hidden}
        found.append(Case(p, tokens, hidden, equal if p == 2 else dict.fromkeys(equal, columns)))
    return found


def observe(answer, case: Case) -> dict:
    (layer_bytes, fewest_tokens), found, most = answer, {}, FACTS["lines"].most
    for key, training in (("inference", False), ("training", True)):
        found[key] = {
            way: layer_bytes(way, case.tokens, case.hidden, columns, case.ranks, training)
            for way, columns in case.columns.items()
        }
    others = {way: columns for way, columns in case.columns.items() if way != "tp"}
    return found | {
        "fewest": {way: fewest_tokens(way, case.hidden, n, case.ranks) for way, n in others.items()},
        "lines": max(lines_run(most, fewest_tokens, way, 30_000, 120_000, 3)[1] for way in others),
    }
