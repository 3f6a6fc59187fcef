"""06.1: a flat buffer of several tensors cut into shards."""

import random

from course_lib.grading.judge import Fact, record

RETURN = "Return a list with one entry for each rank: the list of the pieces that this rank owns"
FACTS = {
    "form": Fact("the form", RETURN),
    "empty": Fact("pieces", "Pieces are never empty, and padding is in no piece."),
    "pieces": Fact("the list of pieces", RETURN, each="rank"),
    "most": Fact("pieces of one tensor on a rank", most=1),
}

Case = record("name sizes ranks")


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    return [
        Case("24 elements in 3 tensors, 4 ranks", [12, 5, 7], 4),
        Case("23 elements in 4 tensors, 4 ranks", [10, 3, 1, 9], 4),
        Case("33 elements in 3 tensors, 3 ranks", [30, 1, 2], 3),
        Case("5 elements in 2 tensors, 4 ranks", [3, 2], 4),
        Case("an empty tensor between two others, 2 ranks", [4, 0, 3], 2),
        Case("one element, 3 ranks", [1], 3),
        Case("no element, 2 ranks", [0], 2),
        Case("1 rank", [2, 3], 1),
        Case("12 tensors of any size, 5 ranks", [draw.randint(1, 40) for _ in range(12)], 5),
    ]


def observe(pieces, case: Case) -> dict:
    got = pieces(list(case.sizes), case.ranks)
    try:
        owned = [[tuple(int(n) for n in (i, start, stop)) for i, start, stop in own] for own in got]
    except (TypeError, ValueError):
        return {"form": f"the result is {got!r:.80}, not a list of lists of three numbers"}
    said = "rank {} has the piece {}, in which `stop` is not above `start`"
    empty = (said.format(rank, one) for rank, own in enumerate(owned) for one in own if one[1] >= one[2])
    indices = range(len(case.sizes))
    return {
        "form": "",
        "empty": next(empty, ""),
        "pieces": [merged(own) for own in owned],
        "most": max([sum(i == index for i, _, _ in own) for own in owned for index in indices], default=0),
    }


def merged(own: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Pieces that continue each other as one: right, though not what the target asks for."""
    found: list[tuple[int, ...]] = []
    for index, start, stop in own:
        if found and found[-1][0] == index and found[-1][2] == start < stop:
            found[-1] = (index, found[-1][1], stop)
        else:
            found.append((index, start, stop))
    return found
