"""Chapter 16: blocks of tokens that sequences share, what is done to them, and what can be wrong with them."""

import random
from dataclasses import dataclass, field


@dataclass
class Memory:
    """What the answer works on: the task explains each of these."""

    size: int
    blocks: list[list]
    uses: list[int]
    tables: dict[str, list[int]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)


def appends(name: str, count: int) -> list[tuple[str, ...]]:
    return [("append", name)] * count


def many(draw: random.Random, count: int) -> list[tuple[str, ...]]:
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


def contents(memory: Memory, name: str) -> list:
    slots = [slot for block in memory.tables[name] for slot in memory.blocks[block]]
    return slots[: memory.lengths[name]]


def damaged(memory: Memory, blocks: int, token: str) -> dict[str, str]:
    """What can be told at once: nothing, or the fact that is wrong."""
    listed = [block for table in memory.tables.values() for block in table]
    if len(memory.blocks) != blocks or any(len(block) != memory.size for block in memory.blocks):
        return {"blocks": f"there must be {blocks} blocks of {memory.size} slots, as before"}
    for block, slots in enumerate(memory.blocks):
        if (other := next(i for i, each in enumerate(memory.blocks) if each is slots)) < block:
            return {"blocks": f"blocks {other} and {block} are one and the same list"}
        if token in slots and listed.count(block) > 1:
            return {"shared": f"the token stands in block {block}, and {listed.count(block)} tables list it"}
    for block, uses in enumerate(memory.uses):
        if uses != (n := listed.count(block)):
            tables = "1 table lists" if n == 1 else f"{n} tables list"
            return {"uses": f"uses[{block}] is {uses}, and {tables} block {block}"}
    for name, table in memory.tables.items():
        if (length := memory.lengths[name]) > len(table) * memory.size:
            return {
                "blocks": f"sequence {name!r} has {length} tokens and {len(table)} blocks of {memory.size}"
            }
    return {}
