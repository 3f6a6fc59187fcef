"""12.1: the groups of any order, and the order in which the fewest bytes leave their node."""

import random

import torch

from course_lib.grading.judge import Fact, record

MEGATRON = "tp-cp-dp-pp"
FACTS = {
    "groups": Fact("the list of groups, sorted,", "Return all groups along `along`: a group holds the…"),
    "sorted": Fact("the list of groups", "Each group is in ascending order, and the groups are in the…"),
    "named": Fact("the order", "Return the order in which the fewest bytes leave their node, as a string…"),
    "bytes": Fact("bytes that leave their node beyond those of the best order", "no order sends…", most=0, beyond=True),
}  # fmt: skip

# Of ``groups`` where there is an ``order``, else of ``best_order``
Case = record("name sizes", order="", along="", sent={}, node=0)


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    drawn = {axis: draw.randint(2, 4) for axis in ("tp", "cp", "dp", "pp")}
    three = {"tp": 3, "dp": 2, "pp": 4}
    return [
        Case("8 ranks, along dp", {"tp": 2, "dp": 2, "pp": 2}, MEGATRON, "dp"),
        Case("16 ranks, along pp", {"tp": 2, "dp": 2, "pp": 4}, MEGATRON, "pp"),
        Case("12 ranks, dp varies fastest, along tp", {"tp": 3, "dp": 4}, "dp-pp-tp", "tp"),
        Case("24 ranks, along tp-pp", three, MEGATRON, "tp-pp"),
        Case("24 ranks, along dp-tp", three, "tp-pp-dp", "dp-tp"),
        Case("12 ranks, along every axis", {"tp": 2, "dp": 3, "pp": 2}, MEGATRON, "pp-dp-tp"),
        Case("6 ranks, along an axis of one rank", {"tp": 3, "cp": 1, "pp": 2}, MEGATRON, "cp"),
        Case("1 rank", {"tp": 1, "dp": 1, "pp": 1}, MEGATRON, "tp"),
        Case("four axes of any size in any order", drawn, "-".join(draw.sample(list(drawn), 4)),
             draw.choice(list(drawn))),
        best("tp sends the most", (4, 2, 2), (1000, 50, 10), 8),
        best("dp sends the most", (2, 8, 2), (10, 900, 40), 8),
        best("two axes do not fit into one node", (4, 2, 4), (100, 90, 10), 4),
        best("rings over two nodes and over four", (2, 4, 2), (80, 90, 70), 4),
        best("rings of three over nodes of four", (2, 3, 2), (4, 16, 3), 4),
        best("one node", (2, 2, 2), (10, 30, 20), 8),
    ]  # fmt: skip


def best(name: str, sizes: tuple[int, ...], sent: tuple[int, ...], node: int) -> Case:
    of_axes = [dict(zip(("tp", "dp", "pp"), numbers, strict=True)) for numbers in (sizes, sent)]
    return Case(f"the best order, {name}", of_axes[0], sent=of_axes[1], node=node)


def observe(answers, case: Case) -> dict:
    groups, best_order = answers
    if case.order:
        got = groups(dict(case.sizes), case.order, case.along)
        try:
            together = sorted(sorted(group) for group in got)
        except TypeError:  # no lists of ranks
            together = got
        return {"groups": together, "sorted": got}
    order = best_order(dict(case.sizes), dict(case.sent), case.node)
    if not isinstance(order, str) or sorted(order.split("-")) != sorted(case.sizes):
        return {"named": f"{order!r} does not name each of {', '.join(case.sizes)} once"}
    return {"bytes": leaving(order.split("-"), case), "trace": order}


def leaving(axes: list[str], case: Case) -> int:
    """Bytes from each rank to the next of its group, and from the last to the first, where that is on another node."""
    shape = [case.sizes[axis] for axis in axes[::-1]]  # of a grid of ranks, its last axis varies fastest
    nodes = torch.arange(torch.Size(shape).numel()).view(shape) // case.node
    return sum(case.sent[axis] * int((nodes != nodes.roll(-1, d)).sum()) for d, axis in enumerate(axes[::-1]))
