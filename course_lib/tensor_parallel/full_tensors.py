"""Whole parameters, gradients and logits out of the ranks' parts, and the way back: for checkpoints and comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.tensor_parallel.shard import Shard, vocabulary_shard


def shards_of(model: nn.Module) -> dict[str, Shard]:
    """For the name of each parameter that is cut, this rank's part. A tied one is under all its names."""
    found = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for attribute, shard in getattr(module, "shards", {}).items():
            found[f"{name}.{attribute}" if name else attribute] = shard
    return found


def full_state_dict(model: nn.Module, mesh: DeviceMesh) -> dict[str, Tensor]:
    """The ``state_dict`` as it would be on one device, in the CPU's memory. Every rank must call it."""
    return full_tensors(model.state_dict(), model, mesh)


def full_gradients(model: nn.Module, mesh: DeviceMesh) -> dict[str, Tensor]:
    """The gradient of every parameter that has one, as on one device. Every rank must call it."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return full_tensors(gradients, model, mesh)


def load_full_state_dict(model: nn.Module, state: Mapping[str, Tensor], **settings: Any) -> Any:
    """``model.load_state_dict`` of whole values, of which each rank takes its part. Nothing is sent."""
    return model.load_state_dict(own_parts(state, model), **settings)


def full_tensors(tensors: Mapping[str, Tensor], model: nn.Module, mesh: DeviceMesh) -> dict[str, Tensor]:
    """Something for each parameter, by its name and in its shape (gradients, Adam's means): this rank's parts to whole
    tensors in the CPU's memory. Every rank must call it, with the same names."""
    shards, whole = shards_of(model), {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor, shards[name], mesh) if name in shards else tensor
        whole[name] = full.detach().to("cpu", copy=True)
    return whole


def own_parts(tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The way back: of whole tensors this rank's parts, as views."""
    shards = shards_of(model)
    return {name: shards[name].of(t) if name in shards else t for name, t in tensors.items()}


def full_logits(logits: Tensor, vocabulary: int, mesh: DeviceMesh) -> Tensor:
    """``(…, vocab/tp)`` to ``(…, vocab)``, to choose the next word with, or for a loss that all ranks compute alike."""
    return WholeLogits.apply(logits, replace(vocabulary_shard(vocabulary, mesh), dim=-1), mesh)


class WholeLogits(torch.autograd.Function):
    """Every rank has the gradient of all logits, so backward sends nothing."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, shard: Shard, mesh: DeviceMesh) -> Tensor:
        ctx.shard = shard
        return full_tensor(logits, shard, mesh)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.shard.of(gradient), None, None


@torch.no_grad()
def full_tensor(part: Tensor, shard: Shard, mesh: DeviceMesh) -> Tensor:
    """The whole of a tensor that is cut. Parts may differ in size, so they are added up in a tensor of zeros."""
    shape = list(part.shape)
    shape[shard.dim] = shard.whole
    full = part.new_zeros(shape)
    if mesh.get_local_rank() % shard.copies == 0:  # of several copies the first
        shard.of(full).copy_(part)
    dist.all_reduce(full, group=mesh.get_group())
    return full
