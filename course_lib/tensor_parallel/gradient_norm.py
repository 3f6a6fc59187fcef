"""The norm of the gradient of a model whose layers are cut; see ``course_lib.runtime.gradient_norm``."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.runtime import gradient_norm
from course_lib.tensor_parallel.full_tensors import shards_of


def clip_grad_norm_(
    model: nn.Module, max_norm: float, mesh: DeviceMesh, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale all gradients so that their norm is at most ``max_norm``; return the norm before. Call it on all ranks.

    Raises:
        ValueError: the norm is not finite and ``error_if_nonfinite``; no gradient is changed.
    """
    gradients, group = held(model, mesh), mesh.get_group()
    return gradient_norm.clip_grad_norm(gradients, max_norm, group, mesh.device_type, error_if_nonfinite)


def grad_norm(model: nn.Module, mesh: DeviceMesh) -> Tensor:
    """The norm of the whole gradient, on every rank."""
    return gradient_norm.grad_norm(held(model, mesh), mesh.get_group(), mesh.device_type)


def held(model: nn.Module, mesh: DeviceMesh) -> Iterator[tuple[Tensor, int]]:
    """Each gradient that this rank has, and how many ranks hold the same elements."""
    shards, p = shards_of(model), mesh.size()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            holders = shards[name].copies if name in shards else p
            yield parameter.grad, holders
