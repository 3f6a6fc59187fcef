"""Which axis of a plan a collective goes along, and which calls of different ranks are one collective."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping

from simulator.trace.files.rank import ONE_TO_ONE, Call, Group

# A group's name -> the axis of the plan. PyTorch's meshes, torchtitan's and Megatron-LM's.
NAMES = {
    "tp": r"tp$|tensor_model",
    "pp": r"pp$|pipeline",
    "ep": r"ep$|expert_model",
    "dp": r"dp|data_parallel|replicate|shard",
    "cp": r"cp$|context",
}
UNKNOWN = "unknown group"


class Axes:
    """Which axis of the plan a collective goes along."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = {axis: size for axis, size in sizes.items() if size > 1}
        self._known: dict[tuple[bool, Group], str] = {}

    def __call__(self, call: Call) -> str:
        key = call.kind in ONE_TO_ONE, call.group
        if key not in self._known:
            self._known[key] = self._find(*key)
        return self._known[key]

    def _find(self, one_to_one: bool, group: Group) -> str:
        name = group.name.lower().removeprefix("mesh_")
        for axis, pattern in NAMES.items():
            if name and re.search(pattern, name):
                return axis
        ranks = group.ranks
        for axis in self.sizes:
            if ranks and ranks == self.ranks(axis, ranks[0]):
                return axis
        if one_to_one and (not self.sizes or "pp" in self.sizes):
            return "pp"
        if not self.sizes and not ranks:
            return UNKNOWN
        return "all ranks" if ranks else UNKNOWN

    def ranks(self, axis: str, rank: int) -> tuple[int, ...]:
        """Of the rank's group along an axis: the last axis varies fastest."""
        stride = 1
        for name in reversed(self.sizes):
            if name == axis:
                first = rank - rank // stride % self.sizes[name] * stride
                return tuple(range(first, first + stride * self.sizes[name], stride))
            stride *= self.sizes[name]
        return ()


def calls_within(calls: list[Call], start: float, end: float) -> list[Call]:
    """Those that begin in a step, in their order."""
    calls = sorted(calls, key=lambda call: call.start)
    starts = [call.start for call in calls]
    return calls[bisect_left(starts, start) : bisect_left(starts, end)]


def met(inside: Mapping[int, list[Call]], axis_of: Axes) -> Iterator[tuple[str, dict[int, Call]]]:
    """Each collective of a step, of which all ranks of the group that are here have a trace: rank -> its call."""
    queues: dict[tuple[str, tuple[int, ...]], dict[int, list[Call]]] = defaultdict(dict)
    for rank, calls in inside.items():
        for call in calls:
            if call.kind not in ONE_TO_ONE:
                axis = axis_of(call)
                ranks = call.group.ranks or axis_of.ranks(axis, rank)
                queues[axis, ranks].setdefault(rank, []).append(call)
    for (axis, _), by_rank in queues.items():
        if axis != UNKNOWN and len(by_rank) > 1 and len({*map(len, by_rank.values())}) == 1:
            for together in zip(*by_rank.values(), strict=True):
                yield axis, dict(zip(by_rank, together, strict=True))
