"""Chapters 09, 10 and 13: words for what an answer returned, its gradient, tensors end to end, and a rank's group."""

import torch
import torch.distributed as dist
from torch import Tensor


def kind(value) -> str:
    name = type(value).__name__.removesuffix("Type")  # "None" for what returns nothing
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else name


def grad(t: Tensor) -> Tensor:
    """Zero where there is none."""
    return t.new_zeros(t.shape) if t.grad is None else t.grad.detach().clone()


def flat(values: Tensor | dict[str, Tensor | None]) -> Tensor:
    """End to end; what is None is left out."""
    found = values.values() if isinstance(values, dict) else [values]
    return torch.cat([t.flatten() for t in found if t is not None])


def own_group(size: int) -> dist.ProcessGroup:
    """This rank's group; every group has ``size`` neighbouring ranks."""
    firsts = range(0, dist.get_world_size(), size)
    groups = [dist.new_group(list(range(first, first + size))) for first in firsts]
    return groups[dist.get_rank() // size]
