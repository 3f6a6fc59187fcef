"""Chapters 09 and 10: words for what an answer returned instead of a tensor, and its gradient."""

import torch.distributed as dist
from torch import Tensor


def kind(value) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def grad(t: Tensor) -> Tensor:
    """Zero where there is none."""
    return t.new_zeros(t.shape) if t.grad is None else t.grad.detach().clone()


def own_group(size: int) -> dist.ProcessGroup:
    """This rank's group; every group has ``size`` neighbouring ranks."""
    firsts = range(0, dist.get_world_size(), size)
    groups = [dist.new_group(list(range(first, first + size))) for first in firsts]
    return groups[dist.get_rank() // size]
