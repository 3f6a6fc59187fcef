"""16.1: append with copy on write; returned values and tokens are looked at after every operation."""

import random

from course_checks.paged_attention import Memory, appends, contents, damaged, many

from course_lib.grading.judge import Fact, record

FACTS = {
    "shared": Fact("blocks", "A token is never written into a block that another sequence lists, too."),
    "blocks": Fact("blocks"),
    "uses": Fact("uses", "Afterwards `uses[b]` is again the number of tables that list block `b`."),
    "lengths": Fact("lengths", "`memory.lengths[name]` is the number of its tokens."),
    "returned": Fact("what {} returns", "Return True when the token has been appended."),
    "tokens": Fact("the tokens after {}", "it puts `token` behind the last token of the sequence `name`."),
    "more": Fact("blocks in use beyond those needed", "No block is taken that the…", most=0, beyond=True),
}

# operations: ("new", name), ("append", name), ("fork", name, of), ("free", name)
Case = record("name blocks size operations", task=None)


def cases(seed: int) -> list[Case]:
    begin = [("new", "a"), *appends("a", 6), ("fork", "b", "a")]
    middle = [*begin, *appends("b", 3), *appends("a", 4)]
    three = [*begin, ("fork", "c", "a"), *appends("c", 1), *appends("a", 1), *appends("b", 3)]
    at_end = [("new", "a"), *appends("a", 8), ("fork", "b", "a"), *appends("b", 2), *appends("a", 1)]
    old = [("new", "a"), *appends("a", 5), ("free", "a"), ("new", "b"), *appends("b", 4)]
    ones = [("new", "a"), *appends("a", 2), ("fork", "b", "a"), *appends("b", 1), *appends("a", 2)]
    none = "If a block is needed and none is free, return False, and change nothing."
    return [
        Case("one sequence, blocks of 4", 4, 4, [("new", "a"), *appends("a", 9)]),
        Case("a fork in the middle of a block, both go on", 6, 4, middle),
        Case("three sequences share a block", 6, 4, three),
        Case("a fork at the end of a block", 6, 4, at_end),
        Case("a shared block and no free one", 2, 4, [*begin, *appends("b", 1), *appends("a", 2)], none),
        Case("no free block, but room in the last one", 2, 4, [("new", "a"), *appends("a", 9)], none),
        Case("a free block with old tokens", 2, 3, old),
        Case("a sequence that was forked has ended", 3, 4, [*begin, ("free", "a"), *appends("b", 4)]),
        Case("blocks of 1", 8, 1, ones),
        Case("many operations", 60, 3, many(random.Random(seed), 70)),
    ]


def observe(append, case: Case) -> dict:
    memory = Memory(case.size, [[None] * case.size for _ in range(case.blocks)], [0] * case.blocks)
    returned, tokens, in_use = {}, {}, 0
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
            token, when = f"{name}{len(returned)}", f"append {len(returned) + 1} (to {name!r})"
            length = memory.lengths[name]
            returned[when] = append(memory, name, token)
            damage = damaged(memory, case.blocks, token)
            if returned[when] and memory.lengths[name] == length:
                damage = damage or {"lengths": f"lengths[{name!r}] is {length}, expected {length + 1}"}
            if damage:
                told = {key: f"{when}: {said}" for key, said in damage.items()}
                return told | {"trace": {name: list(table) for name, table in memory.tables.items()}}
            tokens[when] = {each: contents(memory, each) for each in memory.tables}
            in_use = max(in_use, sum(uses > 0 for uses in memory.uses))
    return {"returned": returned, "tokens": tokens, "more": in_use}
