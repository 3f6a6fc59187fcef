"""The state of sharded training as one device would have it, so that any number of ranks can take it up.

The format is that of ``torch.distributed.checkpoint.state_dict`` with ``full_state_dict=True``: tensors by the
names of the parameters, in the CPU's memory::

    {"model": {name: tensor},
     "optimizer": {"state": {name: {"step": …, "exp_avg": tensor, …}},
                   "param_groups": [{"params": [names], "lr": …, …}]}}

``torch.save`` it on one rank. A parameter with several names (tied weights) is under each of them in the model's
part, and under the first in the optimizer's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.data_parallel.flat import FlatParameters

ONE_NUMBER = ("step", "mu_product", "eta", "mu")  # states that are a number for the whole tensor


@torch.no_grad()
def full_state(
    model: nn.Module,
    flats: Sequence[FlatParameters],
    optimizer: Optimizer,
    groups: Sequence[Sequence[nn.Parameter]],
) -> dict[str, Any]:
    """Everything, on every rank; all ranks of the group call it. One flat buffer is gathered at a time.

    Args:
        optimizer: the one of the flats' shards.
        groups: the parameters of each of its groups.
    """
    names = _names(model)
    values: dict[nn.Parameter, Tensor] = {}
    states: dict[str, dict[str, Any]] = {}
    for flat in flats:
        values |= zip(flat.parameters, flat.gather(flat.shard), strict=True)
        for key, value in optimizer.state.get(flat.shard, {}).items():
            each = [value] * len(flat.parameters) if key in ONE_NUMBER else flat.gather(value)
            for p, one in zip(flat.parameters, each, strict=True):
                states.setdefault(names[p], {})[key] = deepcopy(one)
    param_groups = [
        {**deepcopy({key: value for key, value in group.items() if key != "params"}), "params": own}
        for group, own in zip(optimizer.param_groups, _named_groups(names, groups), strict=True)
    ]
    return {
        "model": {
            name: values[t] if t in values else t.detach().to("cpu", copy=True)
            for name, t in _tensors(model).items()
        },
        "optimizer": {"state": states, "param_groups": param_groups},
    }


@torch.no_grad()
def load_full_state(
    model: nn.Module,
    flats: Sequence[FlatParameters],
    optimizer: Optimizer,
    groups: Sequence[Sequence[nn.Parameter]],
    state: Mapping[str, Any],
) -> None:
    """Take this rank's part of what ``full_state`` gave; every rank is handed the whole.

    Raises:
        ValueError: names, shapes or groups are not those of this model; nothing is changed.
    """
    saved, saved_states = state["model"], state["optimizer"]["state"]
    names, shapes = _names(model), {p: shape for flat in flats for p, (_, shape) in flat.places.items()}
    tensors = _tensors(model)
    if saved.keys() != tensors.keys():
        odd = ", ".join(sorted(saved.keys() ^ tensors.keys()))
        raise ValueError(f"the state and the model must hold the same names; only one of them has {odd}")
    for name, t in tensors.items():
        if saved[name].shape != (shape := shapes.get(t, t.shape)):
            raise ValueError(
                f"{name} must have the model's shape {tuple(shape)}, not {tuple(saved[name].shape)}"
            )
    saved_groups, own = state["optimizer"]["param_groups"], _named_groups(names, groups)
    if [sorted(group["params"]) for group in saved_groups] != [sorted(group) for group in own]:
        raise ValueError(
            "the state's parameter groups must hold the same names as the optimizer's, in the same order"
        )
    shards = {flat.shard: _shard_state(flat, saved_states, names) for flat in flats}

    indexed = optimizer.state_dict()["param_groups"]  # the optimizer's own format: groups of numbers
    new = {"state": {}, "param_groups": []}
    for group, numbers, saved_group in zip(optimizer.param_groups, indexed, saved_groups, strict=True):
        new["param_groups"].append({**deepcopy(saved_group), "params": numbers["params"]})
        new["state"] |= {
            n: shards[s] for n, s in zip(numbers["params"], group["params"], strict=True) if shards[s]
        }
    optimizer.load_state_dict(new)
    for flat in flats:
        flat.assign([saved[names[p]] for p in flat.parameters])
    for name, t in tensors.items():
        if t not in shapes:
            t.copy_(saved[name])


def _shard_state(
    flat: FlatParameters, states: Mapping[str, dict[str, Any]], names: Mapping[nn.Parameter, str]
) -> dict[str, Any]:
    """This rank's part of the states of the parameters in ``flat``."""
    each = [states.get(names[p], {}) for p in flat.parameters]
    shard = {}
    for key in each[0].keys() | each[-1].keys():
        values = [state.get(key) for state in each]
        if key not in ONE_NUMBER and all(isinstance(value, Tensor) for value in values):
            shard[key] = flat.mine(flat.pack(values)).clone()
        elif all(value is not None and value == values[0] for value in values):
            shard[key] = deepcopy(values[0])
        else:
            raise ValueError(
                f"{names[flat.parameters[0]]} and {names[flat.parameters[-1]]} share a shard, so {key!r} must be in "
                "the state of all parameters between them, and one number the same"
            )
    return shard


def _names(model: nn.Module) -> dict[nn.Parameter, str]:
    return {p: name for name, p in model.named_parameters()}


def _named_groups(
    names: Mapping[nn.Parameter, str], groups: Sequence[Sequence[nn.Parameter]]
) -> list[list[str]]:
    return [[names[p] for p in group] for group in groups]


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers; tied parameters under every name."""
    return {name: t for name, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
