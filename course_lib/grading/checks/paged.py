"""The check of 16.1: append with copy on write, held to lists of tokens after every operation."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from course_lib.grading.checks.paged_run import (
    COPY,
    NOT_SHARED,
    Append,
    Case,
    Memory,
    Operation,
    Step,
    Trace,
    run,
)
from course_lib.grading.report import Report, check

APPENDED = "Return True when the token has been appended."
PLACE = "it puts `token` behind the last token of the sequence `name`."
NO_BLOCK = "If a block is needed and none is free, return False, and change nothing."


def appends(name: str, count: int) -> list[Operation]:
    return [("append", name)] * count


def _cases(seed: int) -> list[Case]:
    begin = [("new", "a"), *appends("a", 6), ("fork", "b", "a")]
    draw = random.Random(seed)
    return [
        Case("one sequence, blocks of 4", 4, 4, [("new", "a"), *appends("a", 9)]),
        Case(
            "a fork in the middle of a block, both go on", 6, 4, [*begin, *appends("b", 3), *appends("a", 4)]
        ),
        Case(
            "three sequences share a block",
            6,
            4,
            [
                *begin,
                ("fork", "c", "a"),
                *appends("c", 1),
                *appends("a", 1),
                *appends("b", 1),
                *appends("b", 2),
            ],
        ),
        Case(
            "a fork at the end of a block",
            6,
            4,
            [("new", "a"), *appends("a", 8), ("fork", "b", "a"), *appends("b", 2), *appends("a", 1)],
        ),
        Case("a shared block and no free one", 2, 4, [*begin, *appends("b", 1), *appends("a", 2)]),
        Case("no free block, but room in the last one", 2, 4, [("new", "a"), *appends("a", 9)]),
        Case(
            "a free block with old tokens",
            2,
            3,
            [("new", "a"), *appends("a", 5), ("free", "a"), ("new", "b"), *appends("b", 4)],
        ),
        Case("a sequence that was forked has ended", 3, 4, [*begin, ("free", "a"), *appends("b", 4)]),
        Case(
            "blocks of 1",
            8,
            1,
            [("new", "a"), *appends("a", 2), ("fork", "b", "a"), *appends("b", 1), *appends("a", 2)],
        ),
        Case("many operations", 60, 3, _many(draw, 70)),
    ]


def _many(draw: random.Random, count: int) -> list[Operation]:
    names, operations = ["s0-"], [("new", "s0-")]  # tokens s1-12 and s11-2 are not alike
    for i in range(1, count):
        kind, name = draw.choice(["append"] * 6 + ["fork", "free"]), draw.choice(names)
        if kind == "fork" and len(names) < 5:
            operations.append(("fork", f"s{i}-", name))
            names.append(f"s{i}-")
        elif kind == "free" and len(names) > 1:
            operations.append(("free", name))
            names.remove(name)
        else:
            operations.append(("append", name))
    return operations


@check
def check_16_1(report: Report, append: Append) -> None:
    for case in _cases(report.seed()):
        with report.case(case.name):
            got, problem = run(append, case)
            want, _ = run(_reference, case)
            step = next((i for i, pair in enumerate(zip(got, want, strict=False)) if not _alike(*pair)), None)
            if problem and (step is None or (problem.task == NOT_SHARED and step == len(got) - 1)):
                report.fail(f"{_head(case, len(got) - 1)}: {problem.fact}", task=problem.task)
            report.true(
                step is None,
                "what was returned, and the tokens of every sequence, after each append",
                "" if step is None else _story(case, step, got[step], want[step]),
                got=[each[:3] for each in got],
                mistakes=MISTAKES,
                given=(case,),
                task=_task_of(got[step], want[step], case.appends[step][1]) if step is not None else None,
            )
            report.at_most(
                "blocks in use beyond those needed",
                _most(got) - _most(want),
                0,
                mistakes=SLOW,
                given=(case,),
                task="A block is taken only where the token has no other place.",
            )


def _most(trace: Trace) -> int:
    return max((step.in_use for step in trace), default=0)


def _task_of(got: Step, want: Step, name: str) -> str | None:
    """The sentence of the task that an append to this sequence violates."""
    if want.returned is False:
        return NO_BLOCK
    if got.returned != want.returned:
        return APPENDED
    if any(got.tokens.get(other) != tokens for other, tokens in want.tokens.items() if other != name):
        return NOT_SHARED
    return COPY if want.shared else PLACE


def _alike(got: Step, want: Step) -> bool:
    return got[:2] == want[:2]


def _head(case: Case, step: int) -> str:
    name = case.appends[step][1]
    return f"append number {step + 1}, to sequence {name!r} (blocks of {case.size}, {case.blocks} in all)"


def _story(case: Case, step: int, got: Step, want: Step) -> str:
    if got.returned != want.returned:
        return f"{_head(case, step)} returns {got.returned!r:.40}, expected {want.returned}"
    name = next(name for name in want.tokens if got.tokens.get(name) != want.tokens[name])
    found, expected = _around(got.tokens.get(name), want.tokens[name])
    return f"{_head(case, step)}: sequence {name!r} is then {found}, expected {expected}"


def _around(got: Any, want: list[Any]) -> tuple[str, str]:
    """Both as text; of long ones only what follows the part that they have in common."""
    same = next(
        (i for i, pair in enumerate(zip(got or [], want, strict=False)) if pair[0] != pair[1]), len(want)
    )
    start = max(0, same - 2) if len(want) > 9 else 0
    return tuple(f"{'… ' if start else ''}{(each or [])[start:]!r:.80}" for each in (got, want))


# ---- the reference, and likely mistakes as variations of it -----------------------------------------------------


def _append(memory: Memory, name: str, token: Any, mistake: str = "") -> bool:
    table, length, size = memory.tables[name], memory.lengths[name], memory.size
    place = length % size
    shared = place > 0 and memory.uses[table[-1]] > 1
    if mistake == "always copies":
        shared = place > 0
    if mistake == "copies a full block":
        shared = bool(table) and memory.uses[table[-1]] > 1
    if place == 0 or shared:
        usable = [block for block, uses in enumerate(memory.uses) if uses == 0]
        if mistake == "free only if empty":
            usable = [block for block in usable if memory.blocks[block] == [None] * size]
        free = usable[0] if usable else None
        if mistake == "length first":
            memory.lengths[name] += 1
        if free is None or (mistake == "block 0 is none" and free == 0):
            return False
        memory.uses[free] = 1
        if shared:
            old = table[-1] if mistake == "copy behind" else table.pop()
            memory.uses[old] -= 1
            if mistake != "empty copy":
                memory.blocks[free][:] = memory.blocks[old]
        table.append(free)
        if mistake == "table not told" and shared:
            table[-1] = old
            memory.blocks[free][place] = token
            memory.lengths[name] += 1
            return True
        if mistake == "copies a full block" and shared and place == 0:
            return _append(memory, name, token)
        if mistake == "length first":
            memory.lengths[name] -= 1
    memory.blocks[table[-1]][place] = token
    memory.lengths[name] += 1
    return True


def _reference(memory: Memory, name: str, token: Any) -> bool:
    return _append(memory, name, token)


def _by(mistake: str) -> Callable[[Case], list[tuple[Any, dict[str, list[Any]], int]]]:
    def program(case: Case) -> list[tuple[Any, dict[str, list[Any]], int]]:
        trace, _ = run(lambda memory, name, token: _append(memory, name, token, mistake), case)
        return [step[:3] for step in trace]

    return program


def _beyond(mistake: str) -> Callable[[Case], int]:
    def program(case: Case) -> int:
        trace, _ = run(lambda memory, name, token: _append(memory, name, token, mistake), case)
        return _most(trace) - _most(run(_reference, case)[0])

    return program


MISTAKES: dict[str, Callable[[Case], Sequence[Any]]] = {
    "when the last block is copied although no other sequence lists it": _by("always copies"),
    "when the copy is put behind the shared block, and not in its place": _by("copy behind"),
    "when a free block is not taken because old tokens stand in it": _by("free only if empty"),
    "when block 0 is taken for no block": _by("block 0 is none"),
    "when the copy is a fresh block without the tokens of the old one": _by("empty copy"),
    "when the copy gets the token, and the sequence's table still lists the old block": _by("table not told"),
    "when the length is raised before it is known that a block is free": _by("length first"),
}
SLOW: dict[str, Callable[[Case], int]] = {
    "when a shared block is copied although it is full, and the token goes into another new block": _beyond(
        "copies a full block"
    ),
}
