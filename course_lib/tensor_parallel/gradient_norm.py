"""The norm of the whole gradient, where each rank has parts of some parameters and all of others.

``torch.nn.utils.clip_grad_norm_`` takes the norm of what this rank has. It differs by rank, so each rank would scale
its gradients by another factor, and parameters that all ranks hold would drift apart.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.tensor_parallel.full_tensors import shards_of
from course_lib.training.clipping import scale_gradients


@torch.no_grad()
def clip_grad_norm_(
    model: nn.Module, max_norm: float, mesh: DeviceMesh, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale all gradients so that their norm is at most ``max_norm``; return the norm before. Call it on all ranks.

    Raises:
        ValueError: the norm is not finite and ``error_if_nonfinite``; no gradient is changed.
    """
    norm = grad_norm(model, mesh)
    if error_if_nonfinite and not norm.isfinite():
        raise ValueError(f"the norm of the gradient is {norm:g}, so no gradient was changed")
    scale_gradients((p.grad for p in model.parameters() if p.grad is not None), norm, max_norm)
    return norm


@torch.no_grad()
def grad_norm(model: nn.Module, mesh: DeviceMesh) -> Tensor:
    """The root of the sum of all squares, each element counted once: one all-reduce of one number."""
    shards, p = shards_of(model), mesh.size()
    square = torch.zeros((), dtype=torch.float64, device=mesh.device_type)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            # ranks that hold the same elements
            holders = shards[name].copies if name in shards else p
            norm = parameter.grad.norm(dtype=torch.float64)
            square += norm.square() / holders
    dist.all_reduce(square, group=mesh.get_group())
    return square.sqrt()
