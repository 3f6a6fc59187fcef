"""The state of an FSDP run as one device would have it, so that any number of ranks can take it up.

The layout is that of ``checkpoint.py``: ``{"model": {name: tensor}, "optimizer": {"state": {name: …},
"param_groups": […]}}``, without the second part where no optimizer is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.data_parallel.checkpoint import ONE_NUMBER
from course_lib.data_parallel.fsdp_unit import FlatBuffer, Slot, Unit


@torch.no_grad()
def full_state(model: nn.Module, units: Sequence[Unit], optimizer: Optimizer | None) -> dict[str, Any]:
    """Everything, on every rank, in the CPU's memory; one flat buffer is whole at a time."""
    flats = [flat for unit in units for flat in unit.flats]
    values, states = {}, {}
    for flat in flats:
        values |= zip(flat.slots, flat.collect([slot.piece for slot in flat.slots]), strict=True)
        if optimizer is not None:
            states |= _optimizer_state(flat, optimizer)
    slots = {slot.piece: slot for slot in values}
    state: dict[str, Any] = {
        "model": {
            name: values[slots[t]] if t in slots else t.detach().to("cpu", copy=True)
            for name, t in model.state_dict(keep_vars=True).items()
        }
    }
    if optimizer is not None:
        groups = [
            {**deepcopy({key: value for key, value in group.items() if key != "params"}), "params": names}
            for group, names in zip(optimizer.param_groups, _group_names(optimizer, slots), strict=True)
        ]
        state["optimizer"] = {"state": states, "param_groups": groups}
    return state


def _optimizer_state(flat: FlatBuffer, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """By name of the parameter. A rank whose piece has had no gradient has no state for it; others may."""
    here = {slot.name: optimizer.state.get(slot.piece, {}) for slot in flat.slots}
    numbers = {  # None stands for a tensor with a number for each element
        slot.name: {key: value if key in ONE_NUMBER else None for key, value in here[slot.name].items()}
        for slot in flat.slots
    }
    everyone: list[Any] = [None] * flat.shard_group.size()
    dist.all_gather_object(everyone, numbers, group=flat.shard_group)
    states = {name: {key: v for other in everyone for key, v in other[name].items()} for name in numbers}
    for key in sorted({key for state in states.values() for key, value in state.items() if value is None}):
        pieces = [here[slot.name].get(key, torch.zeros_like(slot.piece)) for slot in flat.slots]
        for slot, value in zip(flat.slots, flat.collect(pieces), strict=True):
            if key in states[slot.name]:
                states[slot.name][key] = value
    return {name: state for name, state in states.items() if state}


@torch.no_grad()
def load_full_state(
    model: nn.Module, units: Sequence[Unit], state: Mapping[str, Any], optimizer: Optimizer | None
) -> None:
    """Take this rank's part; every rank is handed the whole.

    Raises:
        ValueError: names, shapes or groups are not those of this model; nothing is changed.
    """
    slots = {slot.piece: slot for unit in units for flat in unit.flats for slot in flat.slots}
    tensors, saved = model.state_dict(keep_vars=True), state["model"]
    if saved.keys() != tensors.keys():
        odd = ", ".join(sorted(saved.keys() ^ tensors.keys()))
        raise ValueError(f"the state and the model must hold the same names; only one of them has {odd}")
    for name, t in tensors.items():
        shape = slots[t].whole.shape if t in slots else t.shape
        if saved[name].shape != shape:
            raise ValueError(
                f"{name} must have the model's shape {tuple(shape)}, not {tuple(saved[name].shape)}"
            )
    if optimizer is not None:
        _load_optimizer(optimizer, slots, state["optimizer"])
    for name, t in tensors.items():
        t.copy_(_piece(saved[name], slots[t]) if t in slots else saved[name])


def _load_optimizer(
    optimizer: Optimizer, slots: Mapping[nn.Parameter, Slot], saved: Mapping[str, Any]
) -> None:
    groups = saved["param_groups"]
    own = _group_names(optimizer, slots)
    if [sorted(group["params"]) for group in groups] != [sorted(names) for names in own]:
        raise ValueError(
            "the state's parameter groups must hold the same names as the optimizer's, in their order"
        )
    new: dict[str, Any] = {
        "state": {},
        "param_groups": [],
    }  # the optimizer's own layout: numbers for parameters
    for group, there, now in zip(
        optimizer.param_groups, groups, optimizer.state_dict()["param_groups"], strict=True
    ):
        new["param_groups"].append({**deepcopy(there), "params": now["params"]})
        for number, piece in zip(now["params"], group["params"], strict=True):
            slot = slots[piece]
            if values := saved["state"].get(slot.name):
                new["state"][number] = {
                    key: deepcopy(value) if key in ONE_NUMBER else _piece(value, slot).clone()
                    for key, value in values.items()
                }
    optimizer.load_state_dict(new)


def _piece(whole: Tensor, slot: Slot) -> Tensor:
    return whole.flatten()[slot.start :][: slot.piece.numel()]


def _group_names(optimizer: Optimizer, slots: Mapping[nn.Parameter, Slot]) -> list[list[str]]:
    return [[slots[piece].name for piece in group["params"]] for group in optimizer.param_groups]
