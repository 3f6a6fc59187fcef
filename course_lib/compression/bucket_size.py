"""The size of a bucket, found by measuring, as Bagua's autotuning does (arXiv:2107.01499): try, and keep the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from course_lib.runtime.devices import current_device


def fastest(
    sizes: Sequence[float],
    seconds: Callable[[float], float],
    rounds: int = 3,
    group: dist.ProcessGroup | None = None,
) -> tuple[float, dict[float, float]]:
    """The size with the shortest step, and the seconds of every size. All ranks call it, and get the same.

    The slowest rank sets the pace, so a step counts with its longest time on any rank. What else a machine does only
    adds time, so the shortest of some steps counts; sizes take turns, so that all meet the same disturbances.

    Args:
        seconds: runs one step with buckets of this size, and returns how long it took.
        rounds: so often each size is tried.

    Raises:
        ValueError: there is no size, or no round.
    """
    if not sizes or rounds < 1:
        raise ValueError(f"{len(sizes)} sizes and {rounds} rounds; at least one of each is needed")
    taken = torch.tensor([[seconds(size) for size in sizes] for _ in range(rounds)], device=current_device())
    dist.all_reduce(taken, op=dist.ReduceOp.MAX, group=group)
    shortest = taken.amin(dim=0).tolist()
    return sizes[shortest.index(min(shortest))], dict(zip(sizes, shortest, strict=True))
