"""Which ranks belong together: the order in which Megatron-LM lays the ranks of all parallelisms out.

Every rank has one coordinate on each axis, and the rank is a number with these coordinates as its digits. The axis that
stands first in the order varies fastest. Megatron-LM's order begins with tensor parallelism, which sends the most: its
groups are neighbouring ranks, which are on one node. It ends with pipeline parallelism, which sends the least. With
tp = 2, dp = 2 and pp = 2:

    rank    0  1  2  3  4  5  6  7
    tp      0  1  0  1  0  1  0  1        tensor-parallel groups      0 1 | 2 3 | 4 5 | 6 7
    dp      0  0  1  1  0  0  1  1        data-parallel groups        0 2 | 1 3 | 4 6 | 5 7
    pp      0  0  0  0  1  1  1  1        pipeline groups             0 4 | 1 5 | 2 6 | 3 7

A group of an axis is what agrees in all other coordinates (arXiv:2104.04473; Megatron-LM's ``parallel_state.py``).
``DeviceMesh`` gives the same groups where its axes are named in the opposite order, the slowest first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from simulator.inputs.checks import at_least, index

ORDER = ("tp", "cp", "dp", "pp")


def coordinates(rank: int, sizes: Mapping[str, int], order: Sequence[str] = ORDER) -> dict[str, int]:
    """Where a rank stands on each axis.

    >>> coordinates(6, {"tp": 2, "dp": 2, "pp": 2})
    {'tp': 0, 'dp': 1, 'pp': 1}

    Args:
        sizes: ranks along each axis; an axis of ``order`` that is missing has one.

    Raises:
        ValueError: a size is below 1, an axis is not in ``order``, or there is no such rank.
    """
    axes = _axes(sizes, order)
    index(math.prod(sizes.values()), rank=rank)
    place = {}
    for axis in axes:
        rank, place[axis] = divmod(rank, sizes[axis])
    return place


def rank_at(place: Mapping[str, int], sizes: Mapping[str, int], order: Sequence[str] = ORDER) -> int:
    """The rank with these coordinates.

    >>> rank_at({"tp": 0, "dp": 1, "pp": 1}, {"tp": 2, "dp": 2, "pp": 2})
    6

    Raises:
        ValueError: as ``coordinates``; a coordinate is missing, or outside its axis.
    """
    axes = _axes(sizes, order)
    if set(place) != set(axes):
        raise ValueError(f"a rank has a coordinate on each of {', '.join(axes)}, not on {', '.join(place)}")
    rank, stride = 0, 1
    for axis in axes:
        index(sizes[axis], **{axis: place[axis]})
        rank += place[axis] * stride
        stride *= sizes[axis]
    return rank


def rank_groups(sizes: Mapping[str, int], *along: str, order: Sequence[str] = ORDER) -> list[list[int]]:
    """All groups along one axis, or along several: the ranks that agree in all their other coordinates.

    >>> rank_groups({"tp": 2, "dp": 2, "pp": 2}, "dp")
    [[0, 2], [1, 3], [4, 6], [5, 7]]
    >>> rank_groups({"tp": 2, "dp": 2, "pp": 2}, "tp", "pp")  # each group holds one copy of the model
    [[0, 1, 4, 5], [2, 3, 6, 7]]

    Raises:
        ValueError: as ``coordinates``; ``along`` names no axis, or one that is not in ``sizes``.
    """
    axes = _axes(sizes, order)
    if not along or set(along) - set(axes):
        raise ValueError(f"a group goes along one or more of {', '.join(axes)}, not {', '.join(along)}")
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(math.prod(sizes.values())):
        place = coordinates(rank, sizes, order)
        others = tuple(place[axis] for axis in axes if axis not in along)
        groups.setdefault(others, []).append(rank)
    return list(groups.values())


def embedding_groups(sizes: Mapping[str, int], order: Sequence[str] = ORDER) -> list[list[int]]:
    """The first and the last rank of each pipeline, which share a tied embedding and add up its gradients.

    >>> embedding_groups({"tp": 2, "dp": 2, "pp": 2})
    [[0, 4], [1, 5], [2, 6], [3, 7]]
    """
    return [list(dict.fromkeys((ranks[0], ranks[-1]))) for ranks in rank_groups(sizes, "pp", order=order)]


def _axes(sizes: Mapping[str, int], order: Sequence[str]) -> list[str]:
    """The axes that there are, the fastest first."""
    at_least(1, **sizes)
    if unknown := [axis for axis in sizes if axis not in order]:
        raise ValueError(f"the axes are {', '.join(order)}, not {', '.join(unknown)}")
    return [axis for axis in order if axis in sizes]
