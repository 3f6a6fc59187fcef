"""The check of 20.2: which numbers move where when a flat tensor goes from some ranks to others."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from course_lib.grading.report import Report, check

Moves = list[tuple[int, int, int, int, int, int]]
Plan = Callable[[int, int, list[int | None]], Moves]

WHOLE = "Afterwards every real number stands in its place of the new shards."
PADDING = "Padding is never moved, and no move writes into the padding of a new shard."
HOLDS = "A rank can read only the two shards that it holds: its own shard and the copy."
ONCE = "Each place of a new shard is written once."
LOST = "If a number that is not padding is on none of the ranks, raise a `ValueError`."
FORM = "Return a list of moves"
TARGET = (
    "No number travels that its new rank already holds, "
    "and the moves between different ranks are as few as can be."
)


class Case(NamedTuple):
    name: str
    length: int
    old: int
    before: list[int | None]


def _cases(seed: int) -> list[Case]:
    """All but the last two are fixed, and any two mistakes below differ in one of these."""
    draw = random.Random(seed)
    ranks = draw.randint(3, 7)
    gone = draw.randrange(ranks)
    alive = [rank for rank in range(ranks) if rank != gone]
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
        Case("a drawn length, one rank is gone", draw.randint(30, 90), ranks, alive),
        Case("a drawn length, ranks in any order and new ones", draw.randint(20, 60), ranks,
             draw.sample([*range(ranks), None, None], ranks + 2)),
    ]  # fmt: skip


class Outcome(NamedTuple):
    """What the moves make: the new shards (``None`` where nothing was written), and what is wrong with a move."""

    shards: list[list[int | None]] | None
    sent: int = 0
    messages: int = 0
    problem: str = ""
    task: str = ""
    over: tuple[int, ...] = ()  # the move that goes over an end, without its source


def carry_out(plan: Plan, case: Case) -> Outcome:
    """Do what the moves say with the numbers 0, 1, 2, … ; padding is -1."""
    size, after = -(-case.length // case.old), -(-case.length // len(case.before))
    flat = [i if i < case.length else -1 for i in range(size * case.old)]
    holds = [_held(rank, case.old) for rank in case.before]
    shards: list[list[int | None]] = [[None] * after for _ in case.before]
    sent = messages = 0
    try:
        moves = plan(case.length, case.old, list(case.before))
    except ValueError:
        return Outcome(None)
    for move in moves:
        if not (isinstance(move, Sequence) and len(move) == 6):
            said = f"a move is {move!r:.80}, and a move has six numbers"
            return Outcome(shards, sent, messages, said, FORM)
        source, target, shard, start, place, count = map(int, move)
        if problem := _impossible(case, holds, (source, target, shard, start, place, count), size, after):
            return Outcome(shards, sent, messages, *problem, move[1:] if problem[1] == WHOLE else ())
        for i in range(count):
            if shards[target][place + i] is not None:
                said = f"the move {tuple(move)} writes place {place + i} of rank {target} for the second time"
                return Outcome(shards, sent, messages, said, ONCE)
            shards[target][place + i] = flat[shard * size + start + i]
        if source != target and count:
            sent, messages = sent + count, messages + 1
    return Outcome(shards, sent, messages)


def _held(rank: int | None, old: int) -> set[int]:
    return set() if rank is None else {rank, (rank - 1) % old}


def _impossible(
    case: Case, holds: list[set[int]], move: tuple[int, ...], size: int, after: int
) -> tuple[str, str] | None:
    source, target, shard, start, place, count = move
    ranks = len(case.before)
    if not (0 <= source < ranks and 0 <= target < ranks):
        return f"the move {move} names a rank that is not there: {ranks} ranks are numbered from 0", FORM
    if shard not in holds[source]:
        held = ", ".join(map(str, sorted(holds[source]))) or "no shard"
        return f"the move {move} reads shard {shard} on rank {source}, which holds {held}", HOLDS
    if min(start, place, count) < 0 or start + count > size or place + count > after:
        said = (
            f"the move {move} goes over the end of a shard (old shards have {size} places, new ones {after})"
        )
        return said, WHOLE
    return None


@check
def check_20_2(report: Report, moves: Plan) -> None:
    for case in _cases(report.seed()):
        with report.case(case.name):
            got, want = carry_out(moves, case), carry_out(reference, case)
            fact = "the new shards" if want.shards is not None else "it raises a ValueError"
            otherwise, task = _difference(got, want)
            if otherwise:
                otherwise = f"{otherwise}\n(length {case.length}, old {case.old}, before {case.before})"
                report.true(
                    False, fact, otherwise, got=_seen(got), mistakes=MISTAKES, given=(case,), task=task
                )
            report.equal(fact, _seen(got), _seen(want), mistakes=MISTAKES, given=(case,))
            for what, index in (("numbers sent", 0), ("moves between ranks", 1)):
                report.at_most(
                    f"{what} beyond the fewest",
                    max(0, _beyond(moves, case)[index]),
                    0,
                    mistakes={text: partial(_slow, plan, index) for text, plan in SLOW.items()},
                    given=(case,),
                    task=TARGET,
                )


def _slow(plan: Plan, index: int, case: Case) -> int:
    return _beyond(plan, case)[index]


def _beyond(plan: Plan, case: Case) -> tuple[int, int]:
    got, want = carry_out(plan, case), carry_out(reference, case)
    return got.sent - want.sent, got.messages - want.messages


def _seen(outcome: Outcome) -> list[Any]:
    """For hints: where a move is impossible, that is what came out."""
    if outcome.shards is None:
        return ["lost"]
    return [outcome.task, *outcome.over] if outcome.task else [outcome.shards]


def _difference(got: Outcome, want: Outcome) -> tuple[str, str]:
    if got.shards is None or want.shards is None:
        if got.shards is want.shards:
            return "", ""
        raised = "a ValueError is raised, and no number is lost"
        return (raised if got.shards is None else "no ValueError is raised"), LOST
    if got.problem:
        return got.problem, got.task
    for rank, (a, b) in enumerate(zip(got.shards, want.shards, strict=True)):
        for place, (found, expected) in enumerate(zip(a, b, strict=True)):
            if found != expected:
                said = {None: "nothing", -1: "padding"}
                text = (
                    f"place {place} of rank {rank} gets {said.get(found, f'number {found}')}, "
                    f"expected {said.get(expected, f'number {expected}')}"
                )
                return text, PADDING if expected is None or found == -1 else WHOLE
    return "", ""


# ---- the reference, and likely mistakes as variations of it -----------------------------------------------------


def reference(length: int, old: int, before: list[int | None], mistake: str = "") -> Moves:
    size, after = -(-length // old), -(-length // len(before))
    if mistake == "rounds down":
        after = max(1, length // len(before))
    if mistake == "both round down":
        size, after = max(1, length // old), max(1, length // len(before))
    if mistake == "one size":
        after = size
    ends = old * size if mistake == "padding too" else length
    if mistake == "0 is new":
        before = [rank or None for rank in before]
    found: Moves = []
    for target in range(len(before)):
        for shard in range(old):
            first = max(target * after, shard * size)
            last = min((target + 1) * after, (shard + 1) * size, ends)
            if first >= last and not (mistake == "padding is lost" and shard * size >= length):
                continue
            source = _source(target, shard, old, before, mistake)
            start, place, count = first - shard * size, first - target * after, last - first
            if first >= last:
                continue
            outer = (target * after // size, (min((target + 1) * after, ends) - 1) // size)
            if mistake == "two at most" and shard not in outer:
                continue
            if mistake in ("absolute start", "absolute"):
                start = first
            if mistake in ("absolute place", "absolute"):
                place = first
            if mistake == "what stays" and source == target:
                continue
            if mistake == "place of the shard":
                place = start
            if mistake == "old numbers":
                source = before[source]
            if mistake == "one by one":
                found += [(source, target, shard, start + i, place + i, 1) for i in range(count)]
            else:
                found.append((source, target, shard, start, place, count))
    return found


def _source(target: int, shard: int, old: int, before: list[int | None], mistake: str) -> int:
    copy = (shard - 1 if mistake.startswith("other neighbour") else shard + 1) % old
    holders = [shard, shard + 1] if mistake == "no wrap" else [shard, copy]
    if mistake == "no copies":
        holders = [shard]
    if mistake == "nobody is gone":
        return min(shard, len(before) - 1)
    found = [before.index(rank) for rank in holders if rank in before]
    if found and mistake in ("owner first", "copy first"):
        return found[0 if mistake == "owner first" else -1]
    if before[target] in holders:
        return target
    if found:
        return found[0] if mistake == "other neighbour, owner first" else min(found)
    raise ValueError(f"shard {shard} is lost")


def _by(mistake: str) -> Callable[[Case], list[Any]]:
    return lambda case: _seen(carry_out(lambda *given: reference(*given, mistake), case))


NO_WRAP = "when the copy that rank 0 held of the last shard is not found"
MISTAKES: dict[str, Callable[[Case], list[Any]]] = {
    "when the size of the new shards is rounded down": _by("rounds down"),
    "when padding is moved like numbers": _by("padding too"),
    "when the copies are not used": _by("no copies"),
    "when the copy is looked for on the rank before, and not on the rank after": _by("other neighbour"),
    NO_WRAP: _by("no wrap"),
    "when `source` is the number that the rank had before": _by("old numbers"),
    "when `start` is counted from the beginning of the flat tensor": _by("absolute start"),
    "when the copy is looked for on the rank before, and the rank of the shard itself comes first": _by(
        "other neighbour, owner first"
    ),
    "when the sizes of the old and of the new shards are rounded down": _by("both round down"),
    "when the new shards have the size of the old ones": _by("one size"),
    "when `start` and `place` are counted from the beginning of the flat tensor": _by("absolute"),
    "when `place` is counted from the beginning of the flat tensor": _by("absolute place"),
    "when numbers that their new rank already holds are not written to its new shard": _by("what stays"),
    "when `place` is the place in the old shard": _by("place of the shard"),
    "when the rank whose number was 0 before is taken for one that has just come": _by("0 is new"),
    "when a new shard gets numbers of its first and its last old shard, and of none in between": _by(
        "two at most"
    ),
    "when the ranks are taken to have the numbers that they had before": _by("nobody is gone"),
    "when a shard is called lost although it is only padding": _by("padding is lost"),
}
SLOW: dict[str, Plan] = {
    "when every shard is read where it was, although the new rank holds the copy": lambda *given: reference(
        *given, "owner first"
    ),
    "when the copy is read wherever there is one": lambda *given: reference(*given, "copy first"),
    "when every number is a move of its own": lambda *given: reference(*given, "one by one"),
    NO_WRAP: lambda *given: reference(*given, "no wrap"),
}
# They give the right shards. So where shards are wrong, none of these sentences is said.
MISTAKES |= {
    sentence: (lambda case, plan=plan: _seen(carry_out(plan, case)))
    for sentence, plan in SLOW.items()
    if sentence != NO_WRAP
}
