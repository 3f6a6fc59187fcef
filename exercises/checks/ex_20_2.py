"""20.2: which numbers move where when a flat tensor goes from some ranks to others; the moves are carried out."""

import random
from collections.abc import Sequence

from course_lib.grading.judge import Fact, record

HELD = "No number travels that its new rank already holds, "
FEWEST = HELD + "and the moves between different ranks are as few as can be."
FACTS = {
    "lost": Fact("a ValueError", "If a number that is not padding is on none of the ranks, raise a…"),
    "form": Fact("a move", "Return a list of moves"),
    "holds": Fact("what is read", "A rank can read only the two shards that it holds: its own shard and the copy."),
    "once": Fact("what is written", "Each place of a new shard is written once."),
    "padding": Fact("padding", "Padding is never moved, and no move writes into the padding of a new shard."),
    "shards": Fact("the new shard of {}", "Afterwards every real number stands in its place of the new shards."),
    "sent": Fact("numbers sent beyond the fewest", FEWEST, most=0),
    "messages": Fact("moves between ranks beyond the fewest", FEWEST, most=0),
}  # fmt: skip

Case = record("name length old before")


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    ranks = draw.randint(3, 7)
    gone = draw.randrange(ranks)
    return [
        Case("12 numbers, from 4 ranks to 3: rank 3 is gone", 12, 4, [0, 1, 2]),
        Case("12 numbers, from 4 ranks to 3: rank 1 is gone", 12, 4, [0, 2, 3]),
        Case("14 numbers, uneven ends, rank 0 is gone", 14, 4, [1, 2, 3]),
        Case("from 3 ranks to 4: a new one at the end", 10, 3, [0, 1, 2, None]),
        Case("rank 1 of 4 is replaced by a new one", 13, 4, [0, None, 2, 3]),
        Case("a new one is rank 0", 11, 2, [None, 0, 1]),
        Case("the ranks change their order", 9, 3, [2, 0, 1]),
        Case("nothing changes", 10, 4, [0, 1, 2, 3]),
        Case("from 6 ranks to 3: every second one is gone", 18, 6, [1, 3, 5]),
        Case("ranks 0 and 2 of 5 are gone: a new shard meets three old ones", 15, 5, [1, 3, 4]),
        Case("from 1 rank to 3", 7, 1, [None, 0, None]),
        Case("5 numbers on 4 ranks: one shard is all padding", 5, 4, [0, 1, 2]),
        Case("5 numbers on 4 ranks: only padding is lost", 5, 4, [1, 2, None]),
        Case("one number", 1, 3, [0, 1]),
        Case("no number", 0, 3, [0, 2]),
        Case("more ranks than numbers", 2, 2, [0, 1, None, None, None]),
        Case("ranks 1 and 2 of 4 are gone: a shard is lost", 12, 4, [0, 3]),
        Case("a shard is lost, and its first number is real", 4, 4, [0, None, 3]),
        Case("a drawn length, one rank is gone", draw.randint(30, 90), ranks, [r for r in range(ranks) if r != gone]),
        Case("a drawn length, ranks in any order and new ones", draw.randint(20, 60), ranks,
             draw.sample([*range(ranks), None, None], ranks + 2)),
    ]  # fmt: skip


def observe(moves, case: Case) -> dict:
    """Do what the moves say with the numbers 0, 1, 2, …"""
    size, after = -(-case.length // case.old), -(-case.length // len(case.before))
    held = [set() if rank is None else {rank, (rank - 1) % case.old} for rank in case.before]
    lost = {number // size for number in range(case.length)} - set().union(*held)
    try:
        found = moves(case.length, case.old, list(case.before))
    except ValueError:
        return {} if lost else {"lost": "a ValueError is raised, and no number is lost"}
    if lost:
        return {"lost": "no ValueError is raised, though a number is lost"}
    shards, sent, messages = {f"rank {r}": [None] * after for r in range(len(held))}, 0, 0
    for move in found:
        if not (isinstance(move, Sequence) and len(move) == 6):
            return {"form": f"a move is {move!r:.80}, and a move has six numbers"}
        source, target, shard, start, place, count = map(int, move)
        said = f"the move {tuple(move)}"
        if not (0 <= source < len(held) and 0 <= target < len(held)):
            there = f"{len(held)} ranks are numbered from 0"
            return {"form": f"{said} names a rank that is not there: {there}"}
        if shard not in held[source]:
            theirs = ", ".join(map(str, sorted(held[source]))) or "no shard"
            return {"holds": f"{said} reads shard {shard} on rank {source}, which holds {theirs}"}
        if min(start, place, count) < 0 or start + count > size or place + count > after:
            over = f"goes over the end of a shard (old shards have {size} places, new ones {after})"
            return {"form": f"{said} {over}"}
        for i in range(count):
            if shards[f"rank {target}"][place + i] is not None:
                return {"once": f"{said} writes place {place + i} for the second time"}
            if shard * size + start + i >= case.length or target * after + place + i >= case.length:
                return {"padding": f"{said} reads or writes padding"}
            shards[f"rank {target}"][place + i] = shard * size + start + i
        if source != target and count:
            sent, messages = sent + count, messages + 1
    # The fewest: what a rank does not hold comes once, in one move a shard.
    apart = [(number // size, number // after) for number in range(case.length)]
    travels = [(shard, target) for shard, target in apart if shard not in held[target]]
    return {"shards": shards, "sent": sent - len(travels), "messages": messages - len(set(travels))}
