"""Ranks that do not exist, so that one process can see what one of them would hold and send."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@contextmanager
def fake_ranks(tp: int, device: str) -> Iterator[DeviceMesh | None]:
    """A mesh of ``tp`` ranks, of which this process is the first; what it sends goes nowhere. None for one rank.

    Raises:
        ValueError: this process is a rank already.
    """
    if tp == 1:
        yield None
        return
    if dist.is_initialized():
        raise ValueError(f"tp must be 1, not {tp}, where a process group is there already")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook  # which a group's start exchanges
    dist.init_process_group("fake", rank=0, world_size=tp, store=FakeStore())
    try:
        yield init_device_mesh(device, (tp,), mesh_dim_names=("tp",))
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
