"""A mesh names the directions in which ranks are laid out: ``{"dp": 2, "tp": 4}`` is 2 x 4 ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from course_lib.runtime.devices import current_device


def mesh_size(axes: Mapping[str, int]) -> int:
    """How many ranks a mesh with these axes has: the product of their sizes.

    Raises:
        ValueError: ``axes`` is no dict, it is empty, or it has a name or a size that a mesh cannot have.
    """
    if not isinstance(axes, Mapping):
        raise ValueError(
            f'a mesh is a dict of axes and their sizes, such as {{"dp": 2, "tp": 2}}, not {axes!r}'
        )
    if not axes:
        raise ValueError('a mesh needs at least one axis, such as {"dp": 4}')
    for name, size in axes.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"a mesh axis is named by a word such as dp, tp or pp, not {name!r}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"mesh axis {name!r} must be a whole number of ranks, 1 or more; not {size!r}")
    return math.prod(axes.values())


def make_mesh(axes: Mapping[str, int]) -> DeviceMesh:
    """The mesh with these named axes over all ranks; the last axis varies fastest with the rank.

    Ranks that send each other the most should be neighbours, because neighbours are on one node. So put tensor
    parallelism last: ``{"pp": 2, "dp": 2, "tp": 4}``.

    Raises:
        ValueError: the axes are wrong, or their product is not the number of running ranks.
    """
    if (size := mesh_size(axes)) != dist.get_world_size():
        raise ValueError(f"mesh {dict(axes)} has {size} ranks, but {dist.get_world_size()} are running")
    return init_device_mesh(current_device().type, tuple(axes.values()), mesh_dim_names=tuple(axes))
