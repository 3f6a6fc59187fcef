"""The check of 16.1: append with copy on write, held to lists of tokens after every operation."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from course_lib.grading.report import Report, check


@dataclass
class Memory:
    """What the answer works on: the task of 16.1 explains each of these."""

    size: int
    blocks: list[list[Any]]
    uses: list[int]
    tables: dict[str, list[int]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)


USES = "Afterwards `uses[b]` is again the number of tables that list block `b`."
Append = Callable[[Memory, str, Any], bool]
Operation = tuple[str, ...]  # ("new", name), ("append", name), ("fork", name, of), ("free", name)
# For each append: what was returned, sequence -> its tokens, and how many tables list the blocks (sorted).
Trace = list[tuple[Any, dict[str, list[Any]], list[int]]]


@dataclass
class Case:
    name: str
    blocks: int
    size: int
    operations: list[Operation]


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
    names, operations = ["s0"], [("new", "s0")]
    for i in range(1, count):
        kind, name = draw.choice(["append"] * 6 + ["fork", "free"]), draw.choice(names)
        if kind == "fork" and len(names) < 5:
            operations.append(("fork", f"s{i}", name))
            names.append(f"s{i}")
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
            got, problem = _run(append, case)
            want, _ = _run(_reference, case)
            step = next((i for i, pair in enumerate(zip(got, want, strict=False)) if not _alike(*pair)), None)
            if step is None and problem:
                report.fail(problem, task=USES if "uses[" in problem else None)
            report.true(
                step is None,
                "what was returned, and the tokens of every sequence, after each append",
                "" if step is None else _story(case, step, got[step], want[step]),
                got=[(r, tokens) for r, tokens, _ in got],
                mistakes=MISTAKES,
                given=(case,),
                task=None if step is None else _task_of(case, step, got[step], want[step]),
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
    return max((len(uses) for _, _, uses in trace), default=0)


def _task_of(case: Case, step: int, got: tuple, want: tuple) -> str:
    if got[0] != want[0] and want[0] is False:
        return "If a block is needed and none is free, return False, and change nothing."
    if got[0] != want[0]:
        return "Return True when the token has been appended."
    if any(got[1].get(name) != tokens for name, tokens in want[1].items() if name != _name(case, step)):
        return "A token is never written into a block that another sequence lists, too."
    return "it puts `token` behind the last token of the sequence `name`."


def _name(case: Case, step: int) -> str:
    """The sequence of append number ``step``."""
    return [operation[1] for operation in case.operations if operation[0] == "append"][step]


def _alike(got: tuple, want: tuple) -> bool:
    return got[0] == want[0] and got[1] == want[1]


def _story(case: Case, step: int, got: tuple, want: tuple) -> str:
    head = f"append number {step + 1}, to sequence {_name(case, step)!r} (blocks of {case.size}, {case.blocks} in all)"
    if got[0] != want[0]:
        return f"{head} returns {got[0]!r:.40}, expected {want[0]}"
    name = next(name for name in want[1] if got[1].get(name) != want[1][name])
    found, expected = got[1].get(name) or [], want[1][name]
    return f"{head}: sequence {name!r} then ends with {found[-6:]!r:.80}, expected {expected[-6:]!r:.80}"


def _run(append: Append, case: Case) -> tuple[Trace, str | None]:
    """The trace of a case, up to the first damage that can be told at once, and that damage."""
    memory = Memory(case.size, [[None] * case.size for _ in range(case.blocks)], [0] * case.blocks)
    trace: Trace = []
    for kind, name, *of in case.operations:
        if kind == "new":
            memory.tables[name], memory.lengths[name] = [], 0
        elif kind == "fork":
            memory.tables[name], memory.lengths[name] = list(memory.tables[of[0]]), memory.lengths[of[0]]
            for block in memory.tables[name]:
                memory.uses[block] += 1
        elif kind == "free":
            for block in memory.tables.pop(name):
                memory.uses[block] -= 1
            del memory.lengths[name]
        else:
            token = f"{name}{len(trace)}"
            returned = append(memory, name, token)
            trace.append((returned, _contents(memory), sorted(use for use in memory.uses if use)))
            if problem := _damage(memory, case):
                return trace, f"append number {len(trace)}, to sequence {name!r}: {problem}"
    return trace, None


def _contents(memory: Memory) -> dict[str, list[Any]]:
    found = {}
    for name, table in memory.tables.items():
        slots = [slot for block in table for slot in memory.blocks[block]]
        found[name] = slots[: memory.lengths[name]]
    return found


def _damage(memory: Memory, case: Case) -> str | None:
    listed = [block for table in memory.tables.values() for block in table]
    if len(memory.blocks) != case.blocks or any(len(block) != case.size for block in memory.blocks):
        return f"there must be {case.blocks} blocks of {case.size} slots, as before"
    for block, uses in enumerate(memory.uses):
        if uses != listed.count(block):
            return f"uses[{block}] is {uses}, and {listed.count(block)} tables list block {block}"
    for name, table in memory.tables.items():
        if memory.lengths[name] > len(table) * case.size:
            return (
                f"sequence {name!r} has {memory.lengths[name]} tokens and {len(table)} blocks of {case.size}"
            )
    return None


# ---- the reference, and likely mistakes as variations of it -----------------------------------------------------


def _append(memory: Memory, name: str, token: Any, mistake: str = "") -> bool:
    table, length, size = memory.tables[name], memory.lengths[name], memory.size
    place = length % size
    shared = place > 0 and memory.uses[table[-1]] > 1
    if mistake == "never copies":
        shared = False
    if mistake == "always copies":
        shared = place > 0
    if mistake == "copies a full block":
        shared = bool(table) and memory.uses[table[-1]] > 1
    if place == 0 or shared:
        free = next((block for block, uses in enumerate(memory.uses) if uses == 0), None)
        if mistake == "length first":
            memory.lengths[name] += 1
        if free is None:
            return False
        memory.uses[free] = 1
        if shared:
            old = table.pop()
            if mistake != "old use stays":
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


def _by(mistake: str) -> Callable[[Case], list[tuple[Any, dict[str, list[Any]]]]]:
    def program(case: Case) -> list[tuple[Any, dict[str, list[Any]]]]:
        trace, _ = _run(lambda memory, name, token: _append(memory, name, token, mistake), case)
        return [(returned, tokens) for returned, tokens, _ in trace]

    return program


def _beyond(mistake: str) -> Callable[[Case], int]:
    def program(case: Case) -> int:
        trace, _ = _run(lambda memory, name, token: _append(memory, name, token, mistake), case)
        return _most(trace) - _most(_run(_reference, case)[0])

    return program


MISTAKES: dict[str, Callable[[Case], Sequence[Any]]] = {
    "when a token is written into a shared block without a copy, so that other sequences see it": _by(
        "never copies"
    ),
    "when the last block is copied although no other sequence lists it": _by("always copies"),
    "when the copy is a fresh block without the tokens of the old one": _by("empty copy"),
    "when the copy gets the token, and the sequence's table still lists the old block": _by("table not told"),
    "when the length is raised before it is known that a block is free": _by("length first"),
}
SLOW: dict[str, Callable[[Case], int]] = {
    "when a shared block is copied although it is full, and the token goes into another new block": _beyond(
        "copies a full block"
    ),
}
