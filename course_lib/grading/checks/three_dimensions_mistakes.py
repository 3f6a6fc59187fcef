"""Likely mistakes of chapter 12, as programs: groups that are formed wrongly, and norms that count wrongly."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

Groups = list[list[int]]

# ---- 12.1 groups in any order -----------------------------------------------------------------------------


def right_groups(sizes: Mapping[str, int], order: str, along: str) -> Groups:
    """By brute force: a grid of all ranks, whose last axis varies fastest, as DeviceMesh lays it out."""
    axes = order.split("-")[::-1]
    shape = [sizes.get(axis, 1) for axis in axes]
    grid = torch.arange(math.prod(shape)).view(shape)
    moved = [i for i, axis in enumerate(axes) if axis in along.split("-")]
    kept = [i for i in range(len(axes)) if i not in moved]
    groups = grid.permute(*kept, *moved).reshape(-1, math.prod(shape[i] for i in moved))
    return sorted(sorted(group) for group in groups.tolist())


def _by_key(sizes: Mapping[str, int], strides: Mapping[str, int], along: Sequence[str]) -> Groups:
    found: dict[Any, list[int]] = {}
    for rank in range(math.prod(sizes.values())):
        key = tuple(rank // strides[axis] % sizes[axis] for axis in strides if axis not in along)
        found.setdefault(key, []).append(rank)
    return list(found.values())


def _strides_not_multiplied(sizes: Mapping[str, int], order: str, along: str) -> Groups:
    axes, strides, before = order.split("-"), {}, 1
    sizes = {axis: sizes.get(axis, 1) for axis in axes}
    for axis in axes:
        strides[axis], before = before, sizes[axis]
    return _by_key(sizes, strides, along.split("-"))


def _neighbours(sizes: Mapping[str, int], order: str, along: str) -> Groups:
    size = math.prod(sizes.get(axis, 1) for axis in along.split("-"))
    ranks = list(range(math.prod(sizes.values())))
    return [ranks[start : start + size] for start in range(0, len(ranks), size)]


def _others(sizes: Mapping[str, int], order: str, along: str) -> Groups:
    others = [axis for axis in order.split("-") if axis not in along.split("-")]
    return right_groups(sizes, order, "-".join(others))


def _as_named(sizes: Mapping[str, int], order: str, along: str) -> Groups:
    strides, ranks = {}, 1
    for axis in order.split("-"):
        strides[axis] = ranks
        ranks *= sizes.get(axis, 1)
    offsets = [0]
    for axis in along.split("-"):
        offsets = [place * strides[axis] + start for place in range(sizes.get(axis, 1)) for start in offsets]
    firsts = [group[0] for group in right_groups(sizes, order, along)]
    return [[first + offset for offset in offsets] for first in firsts]


GROUPS: dict[str, Callable[[Mapping[str, int], str, str], Groups]] = {
    "when the axis that stands last in the order varies fastest": lambda sizes, order, along: right_groups(
        sizes, "-".join(order.split("-")[::-1]), along
    ),
    "when a group holds the ranks that agree in `along`, and not those that agree in all other axes": _others,
    "when the ranks of every group are taken to be neighbours": _neighbours,
    "when the order is taken to be tp-cp-dp-pp, whatever is asked": lambda sizes, order, along: right_groups(
        sizes, "tp-cp-dp-pp", along
    ),
    "when the stride of an axis is the size of the axis before it, and not the product of all before it": (
        _strides_not_multiplied
    ),
    "when only the first axis of `along` is used": lambda sizes, order, along: right_groups(
        sizes, order, along.split("-")[0]
    ),
    "when only the last axis of `along` is used": lambda sizes, order, along: right_groups(
        sizes, order, along.split("-")[-1]
    ),
    "when the groups along each axis of `along` stand one after the other": lambda sizes, order, along: [
        group for axis in along.split("-") for group in right_groups(sizes, order, axis)
    ],
    "when the ranks of a group stand as `along` names the axes, the first fastest, and not in ascending order": (
        _as_named
    ),
    "when groups of one rank are left out": lambda sizes, order, along: [
        group for group in right_groups(sizes, order, along) if len(group) > 1
    ],
    "when only the group of rank 0 is returned": lambda sizes, order, along: right_groups(
        sizes, order, along
    )[:1],
}


@dataclass(frozen=True)
class Ordering:
    """A question of 12.1: which order sends the fewest bytes off the nodes."""

    sizes: Mapping[str, int]
    sent: Mapping[str, int]
    node: int

    def orders(self) -> list[str]:
        return ["-".join(axes) for axes in permutations(self.sizes)]

    def leaving(self, order: str, way: str = "ring") -> int:
        """Bytes that leave their node: each rank sends to the next of its group, and in a ring the last to the first.

        ``way``: ``"chain"`` leaves out the message of the last rank, and ``"whole"`` counts all messages of a group
        that is not on one node.
        """
        total = 0
        for axis in self.sizes:
            for group in right_groups(self.sizes, order, axis):
                following = group[1:] if way == "chain" else group[1:] + group[:1]
                crossing = sum(
                    a // self.node != b // self.node for a, b in zip(group, following, strict=False)
                )
                total += self.sent[axis] * (len(group) * (crossing > 0) if way == "whole" else crossing)
        return total

    def least(self, way: str, order: str) -> bool:
        """Whether the order is the best one, were the bytes counted that way."""
        return self.leaving(order, way) == min(self.leaving(other, way) for other in self.orders())

    def by_bytes(self, first: int, order: str) -> bool:
        """Whether the axes stand by what they send: the largest first, or (-1) last."""
        return order == "-".join(sorted(self.sizes, key=lambda axis: -first * self.sent[axis]))


# Which orders a mistake may give; it explains an answer only if it explains the orders of all cases.
ORDERS: dict[str, Callable[[Ordering, str], bool]] = {
    "when the axis that sends the most varies fastest, whatever the sizes": lambda case, order: case.by_bytes(
        1, order
    ),
    "when the axis that sends the most varies slowest": lambda case, order: case.by_bytes(-1, order),
    "when the message from the last rank of a group to its first is not counted": lambda case, order: (
        case.least("chain", order)
    ),
    "when all messages of a group count that is not on one node, also those inside a node": (
        lambda case, order: case.least("whole", order)
    ),
}


# ---- 12.3 one norm over three dimensions ------------------------------------------------------------------


@dataclass(frozen=True)
class Whole:
    """Gradients of a whole model.

    Args:
        dtype, size: of the gradients, and about how large their elements are.
        empty: a stage without gradients.
    """

    dtype: torch.dtype = torch.float32
    size: float = 1.0
    empty: int | None = None


# For each stage the whole gradients by name: "embedding" is the same on the first and the last.
Stages = list[dict[str, Tensor]]
CUT = ("embedding", "up", "down")  # what tensor parallelism cuts
TIED = ("embedding",)


def norms(
    stages: Stages,
    axes: Mapping[str, int],
    kind: Whole,
    *,
    copies_dp: bool = False,
    copies_tp: bool = False,
    twice: bool = False,
    cut_divided: bool = False,
    whole_twice: bool = False,
    halved: bool = False,
    only: str = "",
    added: bool = False,
    squared: bool = False,
    rounded: bool = False,
) -> list[float]:
    """What every rank would return, in the order of the ranks; the arguments are mistakes.

    Args:
        only: the axis along which the squares are added up, and not along the others.
        added: norms are added, and not squares.
    """
    t, d, p = axes["tp"], axes["dp"], axes["pp"]
    own = torch.zeros(p, d, t, dtype=torch.float64)
    for stage, gradients in enumerate(stages):
        for name, whole in gradients.items():
            is_cut, is_tied = name in CUT, name in TIED
            parts = whole.chunk(t) if is_cut else [whole] * t
            for rank, part in enumerate(parts):
                square = part.double().square().sum()
                if rounded:
                    square = part.square().sum().double()
                weight = 1.0 if copies_dp else 1 / d
                if (not is_cut and not copies_tp) or (is_cut and cut_divided):
                    weight /= t
                if is_tied and p > 1 and not twice:
                    weight /= 2
                if is_tied and p == 1 and halved:
                    weight /= 2
                own[stage, :, rank] += weight * square
    own = own.sqrt() if added else own
    if only == "none":
        total = own
    else:
        dims = {"": (0, 1, 2), "pp": (0,), "dp": (1,), "tp": (2,), "tp and pp": (0, 2)}[only]
        total = own.sum(dims, keepdim=True).expand_as(own)
    total = total if added or squared else total.sqrt()
    return total.flatten().tolist()


def _local(stages: Stages, axes: Mapping[str, int], kind: Whole) -> list[float]:
    """Each rank's norm of what it holds."""
    once = {**axes, "dp": 1}
    own = norms(stages, once, kind, copies_tp=True, twice=True, only="none")
    t, p = axes["tp"], axes["pp"]
    return [own[stage * t + rank] for stage in range(p) for _ in range(axes["dp"]) for rank in range(t)]


NORMS: dict[str, Callable[..., list[float]]] = {
    "when each rank takes the norm of its own gradients": _local,
    "when every copy counts: those of data parallelism, of parameters that are not cut, and of the tied one": partial(
        norms, copies_dp=True, copies_tp=True, twice=True
    ),
    "when each data-parallel copy counts": partial(norms, copies_dp=True),
    "when what is not cut counts once for each tensor-parallel rank": partial(norms, copies_tp=True),
    "when what is not cut counts once for each tensor-parallel rank, and each data-parallel copy counts": partial(
        norms, copies_dp=True, copies_tp=True
    ),
    "when the tied parameter counts on the first stage and on the last": partial(norms, twice=True),
    "when the tied parameter counts on both stages, and each data-parallel copy counts": partial(
        norms, copies_dp=True, twice=True
    ),
    "when the tied parameter counts on both stages, and what is not cut once for each tensor-parallel rank": partial(
        norms, copies_tp=True, twice=True
    ),
    "when the squares of cut parameters are divided by the tensor-parallel ranks, too": partial(
        norms, cut_divided=True
    ),
    "when the tied parameter counts half, although the only stage has it alone": partial(norms, halved=True),
    "when norms are added up, and not their squares": partial(norms, added=True),
    "when the root is missing": partial(norms, squared=True),
    "when squares are added up in the dtype of the gradients": partial(norms, rounded=True),
}
