"""What ``launch`` does in a process that torchrun started, on one machine or many: the process is a rank already."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from course_lib.runtime import devices, rank
from course_lib.runtime.mesh import make_mesh


def is_active() -> bool:
    return dist.is_available() and dist.is_torchelastic_launched()


def run(
    fn: Callable[..., Any], ranks: int, mesh: Mapping[str, int] | None, args: tuple, backend: str | None
) -> list[Any]:
    """Run ``fn`` in this process as one of torchrun's ranks; returns the results of all ranks, on every rank.

    A script may have called ``init_process_group`` itself; then its process group is used.

    Raises:
        ValueError: torchrun started another number of ranks.
    """
    if (world := int(os.environ["WORLD_SIZE"])) != ranks:
        raise ValueError(f"torchrun started {world} ranks, but launch was asked for {ranks}")
    devices.set_device(int(os.environ["LOCAL_RANK"]))
    if not dist.is_initialized():
        backend = devices.choose_backend(int(os.environ["LOCAL_WORLD_SIZE"]), backend)
        dist.init_process_group(devices.WITH_CPU.get(backend, backend))
        # Called second: it ends Gloo's threads, which live as long as a model in a circle of references holds their
        # group. One that still lets go of a tensor while Python ends aborts the process, after all of its work is done.
        atexit.register(gc.collect)
        atexit.register(dist.destroy_process_group)
    if mesh is not None:
        args = (make_mesh(mesh), *args)
    rank.in_rank = True  # a launch inside of fn is refused here too
    try:
        result = fn(*args)
    finally:
        rank.in_rank = False
    results: list[Any] = [None] * ranks
    dist.all_gather_object(results, result)
    return results
