"""The state of sharded training for ``torch.distributed.checkpoint``: each rank writes its part of a file.

A full state would need the memory of the whole model on every rank. Here every parameter is a ``DTensor`` that is cut
along its first dimension, the layout of PyTorch's ``fully_shard``. So a checkpoint of 4 ranks is loaded by 3, by 1, by
``fully_shard``, or into a plain model. One flat buffer is gathered at a time to cut it in this way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from course_lib.data_parallel.checkpoint import ONE_NUMBER, full_flat_states
from course_lib.data_parallel.sharded_module import ShardedModule


@torch.no_grad()
def sharded_state_dict(model: ShardedModule, optimizer: Optimizer | None = None) -> dict[str, Any]:
    """``{"model": {name: DTensor}, "optimizer": {"state": {name: …}, "param_groups": […]}}``, cut over the ranks.

    >>> torch.distributed.checkpoint.save(sharded_state_dict(model, optimizer), checkpoint_id=folder)  # doctest: +SKIP

    All ranks call it. Without an optimizer the second part is missing.
    """
    model.reshard()
    mesh = _shard_mesh(model)
    cut: dict[str, Any] = {}
    states: dict[str, dict[str, Any]] = {}
    for flat in model.flats:
        for name, full in zip(flat.names, flat.collect(flat.shard), strict=True):
            cut[name] = _rows(full, mesh)
        if optimizer is not None:
            for name, state in full_flat_states(flat, optimizer).items():
                states[name] = {k: v if k in ONE_NUMBER else _rows(v, mesh) for k, v in state.items()}
    of_shard = {p: name for flat in model.flats for p, name in zip(flat.in_model, flat.names, strict=True)}
    tensors = model.module.state_dict(keep_vars=True)
    state: dict[str, Any] = {
        "model": {n: cut[of_shard[t]] if t in of_shard else t for n, t in tensors.items()}
    }
    if optimizer is not None:
        groups = model.optimizer_groups(optimizer)
        state["optimizer"] = {"state": states, "param_groups": groups}
    return state


@torch.no_grad()
def load_sharded_state_dict(
    model: ShardedModule, state: dict[str, Any], optimizer: Optimizer | None = None
) -> None:
    """Take over a state that ``torch.distributed.checkpoint.load`` has filled. All ranks call it.

    >>> state = sharded_state_dict(model, optimizer)                                 # doctest: +SKIP
    >>> torch.distributed.checkpoint.load(state, checkpoint_id=folder)               # doctest: +SKIP
    >>> load_sharded_state_dict(model, state, optimizer)                             # doctest: +SKIP

    An optimizer must have its states before they can be loaded: ``make_optimizer_states`` makes them.
    """
    if optimizer is not None:
        states = {name: _full(one) for name, one in state["optimizer"]["state"].items()}
        model.load_optimizer_state_dict(optimizer, {**state["optimizer"], "state": states})
    model.load_state_dict(_full(state["model"]))


@torch.no_grad()
def make_optimizer_states(optimizer: Optimizer) -> None:
    """Let an optimizer make its states, by a step with gradients of zero and a learning rate of zero."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if optimizer.state or any(p.grad is not None for p in parameters):
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(rate) if isinstance(rate := group["lr"], Tensor) else 0.0
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    optimizer.step()
    optimizer.zero_grad()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _shard_mesh(model: ShardedModule) -> DeviceMesh:
    mesh = model.mesh
    return mesh if mesh.ndim == 1 else mesh[mesh.mesh_dim_names[-1]]


def _rows(full: Tensor, mesh: DeviceMesh) -> Tensor:
    """This rank's rows of a tensor, as torch.chunk cuts them; a scalar stays whole, and one rank writes it."""
    if full.dim() == 0:
        return full
    chunks = full.chunk(mesh.size())
    rank = mesh.get_local_rank()
    mine = chunks[rank] if rank < len(chunks) else full[:0]
    return DTensor.from_local(
        mine.contiguous().to(mesh.device_type),
        mesh,
        [Shard(0)],
        run_check=False,
        shape=full.shape,
        stride=full.stride(),
    )


def _full(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v.full_tensor().cpu() if isinstance(v, DTensor) else v for k, v in state.items()}
