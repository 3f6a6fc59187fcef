"""What an answer of 16.1 did: each operation on a memory in blocks, its trace, and damage that can be told at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

COPY = "Where such a block is the place of the new token, the sequence first gets a copy of it in a free block, in place of the shared one."  # noqa: E501
NOT_SHARED = "A token is never written into a block that another sequence lists, too."
USES = "Afterwards `uses[b]` is again the number of tables that list block `b`."


@dataclass
class Memory:
    """What the answer works on: the task of 16.1 explains each of these."""

    size: int
    blocks: list[list[Any]]
    uses: list[int]
    tables: dict[str, list[int]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)


Append = Callable[[Memory, str, Any], bool]
Operation = tuple[str, ...]  # ("new", name), ("append", name), ("fork", name, of), ("free", name)


@dataclass
class Case:
    name: str
    blocks: int
    size: int
    operations: list[Operation]

    @property
    def appends(self) -> list[Operation]:
        return [operation for operation in self.operations if operation[0] == "append"]


class Step(NamedTuple):
    """What one append did.

    Args:
        tokens: sequence -> its tokens, afterwards.
        listed: how many blocks all tables list together, afterwards.
        in_use: how many blocks are in use, afterwards.
        shared: whether another sequence listed the block in which the place of the new token was.
    """

    returned: Any
    tokens: dict[str, list[Any]]
    listed: int
    in_use: int
    shared: bool


Trace = list[Step]


class Damage(NamedTuple):
    fact: str
    task: str | None = None


def run(append: Append, case: Case) -> tuple[Trace, Damage | None]:
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
            shared = memory.lengths[name] % case.size > 0 and memory.uses[memory.tables[name][-1]] > 1
            returned = append(memory, name, token)
            in_use = sum(uses > 0 for uses in memory.uses)
            listed = sum(map(len, memory.tables.values()))
            trace.append(Step(returned, _contents(memory), listed, in_use, shared))
            if problem := _damage(memory, case, token):
                return trace, problem
    return trace, None


def _contents(memory: Memory) -> dict[str, list[Any]]:
    found = {}
    for name, table in memory.tables.items():
        slots = [slot for block in table for slot in memory.blocks[block]]
        found[name] = slots[: memory.lengths[name]]
    return found


def _damage(memory: Memory, case: Case, token: str) -> Damage | None:
    listed = [block for table in memory.tables.values() for block in table]
    if len(memory.blocks) != case.blocks or any(len(block) != case.size for block in memory.blocks):
        return Damage(f"there must be {case.blocks} blocks of {case.size} slots, as before")
    for block, slots in enumerate(memory.blocks):
        if (other := next(i for i, each in enumerate(memory.blocks) if each is slots)) < block:
            return Damage(f"blocks {other} and {block} are one and the same list", COPY)
    for block, slots in enumerate(memory.blocks):
        if token in slots and listed.count(block) > 1:
            return Damage(
                f"the token stands in block {block}, and {listed.count(block)} tables list it", NOT_SHARED
            )
    for block, uses in enumerate(memory.uses):
        if uses != listed.count(block):
            return Damage(
                f"uses[{block}] is {uses}, and {listed.count(block)} tables list block {block}", USES
            )
    for name, table in memory.tables.items():
        if (length := memory.lengths[name]) > len(table) * case.size:
            return Damage(f"sequence {name!r} has {length} tokens and {len(table)} blocks of {case.size}")
    return None
