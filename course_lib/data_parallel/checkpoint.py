"""The state of sharded training as one device would have it, so that any number of ranks can take it up.

Model states are ``{name: tensor}``. Optimizer states are those of ``torch.distributed.checkpoint.state_dict`` with
``full_state_dict=True``: by the names of the parameters, with tensors in the memory of the CPU::

    {"state": {name: {"step": …, "exp_avg": tensor, …}}, "param_groups": [{"params": [names], "lr": …, …}]}

``torch.save`` both on one rank. A parameter with several names (tied weights) is under each of them in the model's
state, and under the first in the optimizer's.

The flat buffers here are those of ``ShardedFlat`` (FSDP) or ``ShardedBucket`` (ZeRO).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

ONE_NUMBER = ("step", "mu_product", "eta", "mu")  # states that are a number for the whole tensor


@torch.no_grad()
def full_parameters(model: nn.Module, flats: Sequence[Any]) -> dict[str, Tensor]:
    """All parameters and buffers of the model, on every rank; one flat buffer is gathered at a time."""
    full: dict[nn.Parameter, Tensor] = {}
    for flat in flats:
        full |= zip(flat.in_model, flat.collect(flat.shard), strict=True)
    return {
        name: full[t] if t in full else t.detach().to("cpu", copy=True) for name, t in _tensors(model).items()
    }


@torch.no_grad()
def full_optimizer_state(
    flats: Sequence[Any], optimizer: Optimizer, groups: list[list[str]] | None = None
) -> dict[str, Any]:
    """The states of all parameters, and the groups, on every rank; all ranks of the group call it.

    Args:
        groups: the names of the parameters in each of the optimizer's groups; None: read it from ``flats``.
    """
    states: dict[str, dict[str, Any]] = {}
    for flat in flats:
        states |= full_flat_states(flat, optimizer)
    return {"state": states, "param_groups": named_groups(optimizer, groups or group_names(flats, optimizer))}


def named_groups(optimizer: Optimizer, names: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """The settings of the optimizer's groups, with names for parameters."""
    return [
        {**deepcopy({key: value for key, value in group.items() if key != "params"}), "params": list(own)}
        for group, own in zip(optimizer.param_groups, names, strict=True)
    ]


def full_flat_states(flat: Any, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """By name. A rank that owns no element of a parameter has no state for it; others have."""
    here = flat.states(optimizer)
    numbers = [  # None stands for a tensor with a number for each element
        {key: value if key in ONE_NUMBER else None for key, value in state.items()} for state in here
    ]
    everyone: list[Any] = [None] * flat.ranks
    dist.all_gather_object(everyone, numbers, group=flat.group)
    states: list[dict[str, Any]] = [{} for _ in here]
    for rank in everyone:
        for state, found in zip(states, rank, strict=True):
            state |= found
    for key in sorted({key for state in states for key, value in state.items() if value is None}):
        full = flat.collect(flat.join([state.get(key) for state in here]))
        for state, value in zip(states, full, strict=True):
            if key in state:
                state[key] = value
    return {name: deepcopy(state) for name, state in zip(flat.names, states, strict=True) if state}


@torch.no_grad()
def load_full_state(
    model: nn.Module,
    flats: Sequence[Any],
    parameters: Mapping[str, Tensor] | None,
    optimizer: Optimizer | None = None,
    state: Mapping[str, Any] | None = None,
    groups: list[list[str]] | None = None,
) -> None:
    """Take this rank's shards of the full states, which every rank is given.

    Raises:
        ValueError: names, shapes or parameter groups are not those of this model; nothing is changed.
    """
    if parameters is not None:
        _check_names_and_shapes(model, flats, parameters)
    if optimizer is not None:
        _load_optimizer(flats, optimizer, state, groups or group_names(flats, optimizer))
    if parameters is None:
        return
    sharded = set()
    for flat in flats:
        of_model = dict(zip(flat.in_model, flat.names, strict=True))
        sharded |= of_model.keys()
        flat.assign([parameters[name] for name in of_model.values()])
    for name, t in _tensors(model).items():
        if t not in sharded:
            t.copy_(parameters[name])


def _check_names_and_shapes(model: nn.Module, flats: Sequence[Any], saved: Mapping[str, Tensor]) -> None:
    shapes = {t: shape for flat in flats for t, shape in zip(flat.in_model, flat.shapes, strict=True)}
    tensors = _tensors(model)
    if saved.keys() != tensors.keys():
        odd = ", ".join(sorted(saved.keys() ^ tensors.keys()))
        raise ValueError(f"the state and the model must hold the same names; only one of them has {odd}")
    for name, t in tensors.items():
        if saved[name].shape != (shape := shapes.get(t, t.shape)):
            raise ValueError(
                f"{name} must have the model's shape {tuple(shape)}, not {tuple(saved[name].shape)}"
            )


def _load_optimizer(
    flats: Sequence[Any], optimizer: Optimizer, saved: Mapping[str, Any], own: list[list[str]]
) -> None:
    groups = saved["param_groups"]
    if [sorted(group["params"]) for group in groups] != [sorted(names) for names in own]:
        raise ValueError(
            "the state's parameter groups must hold the same names as the optimizer's, in the same order"
        )
    shards: dict[nn.Parameter, dict[str, Any]] = {}
    for flat in flats:
        shards |= flat.shard_states([saved["state"].get(name, {}) for name in flat.names])
    new: dict[str, Any] = {
        "state": {},
        "param_groups": [],
    }  # the optimizer's own format: numbers for parameters
    indexed = optimizer.state_dict()["param_groups"]
    for group, saved_group, now in zip(optimizer.param_groups, groups, indexed, strict=True):
        new["param_groups"].append({**deepcopy(saved_group), "params": now["params"]})
        for number, parameter in zip(now["params"], group["params"], strict=True):
            if shards.get(parameter):
                new["state"][number] = shards[parameter]
    optimizer.load_state_dict(new)


def group_names(flats: Sequence[Any], optimizer: Optimizer) -> list[list[str]]:
    names = {}
    for flat in flats:
        for parameter, covered in flat.updated_parameters():
            names[parameter] = covered
    return [[name for p in group["params"] for name in names[p]] for group in optimizer.param_groups]


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers; tied parameters under every name."""
    return {name: t for name, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
