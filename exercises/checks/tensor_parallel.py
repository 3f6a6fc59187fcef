"""Chapters 09 and 10: what ranks saw, put together; and words for what an answer returned instead of a tensor."""

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from course_lib.grading.judge import Fact
from course_lib.grading.ranks import launch


def on_ranks(
    on_rank: Callable[..., dict[str, Any]],
    ranks: int | None,
    facts: Mapping[str, Fact],
    *args: Any,
    **how: Any,
) -> dict[str, Any]:
    """What every rank saw, one entry a rank; of a target the largest. What a rank did not come to is left out."""
    seen = launch(on_rank, ranks, args=args, backend="gloo", timeout=60.0, **how)
    keys = [key for key in facts if all(key in one for one in seen)]
    return {
        key: max(one[key] for one in seen) if facts[key].most is not None else [one[key] for one in seen]
        for key in keys
    }


def kind(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def grad(t: Tensor) -> Tensor:
    """Zero where there is none."""
    return t.new_zeros(t.shape) if t.grad is None else t.grad.detach().clone()


def count(many: int, what: str) -> str:
    return f"{many} {what}{'s' * (many > 1)}"


def own_group(size: int) -> dist.ProcessGroup:
    """This rank's group; every group has ``size`` neighbouring ranks."""
    firsts = range(0, dist.get_world_size(), size)
    groups = [dist.new_group(list(range(first, first + size))) for first in firsts]
    return groups[dist.get_rank() // size]
