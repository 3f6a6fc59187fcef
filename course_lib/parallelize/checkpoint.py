"""Checkpoints that any plan can load, through ``torch.distributed.checkpoint``.

A checkpoint holds each parameter once and whole, and so each of the optimizer's states. While one is saved the parts of
one parameter after the other are gathered, and the ranks that hold the same layers take turns in keeping it. So all
ranks write, each about as much. To load it, each rank reads what belongs to its layers, and takes its part.
``course_lib.checkpoints`` sees to it that a save is whole, or not there.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from course_lib.checkpoints.manifest import Save
from course_lib.checkpoints.saves import checked, newest_whole
from course_lib.checkpoints.tensors import load_tensors, save_tensors, saved_tensors
from course_lib.parallelize.meaning import differences, kind_of_optimizer, listed
from course_lib.parallelize.parallel_model import ParallelModel


def save_checkpoint(
    folder: str | os.PathLike, model: ParallelModel, optimizer: Optimizer, /, **extra: Any
) -> None:
    """Write model and optimizer into ``folder``, in place of an older checkpoint. All ranks call it, and see it.

    Args:
        extra: whatever else is to be found again, such as ``step=100``; rank 0's counts, as its ``folder`` does.

    Raises:
        DiskFull: there is no room; what was there before is as it was.
    """
    mesh, whole = model.mesh, model.whole
    keepers = mesh["dp"].size() * mesh["tp"].size()  # the ranks that hold the same layers
    me = mesh["dp"].get_local_rank() * mesh["tp"].size() + mesh["tp"].get_local_rank()
    state: dict[str, Tensor] = {}

    def keep(number: int, key: str, name: str, part: Tensor) -> None:
        tensor = whole.full(name, part) if part.dim() else part.detach().cpu()
        if number % keepers == me:
            state[key] = tensor

    for i, (name, part) in enumerate(model.data.parameters()):
        keep(i, f"model/{whole.first_name[name]}", name, part)
    for name, buffer in model.buffers():
        keep(0, f"model/{name}", name, buffer)
    local = model.data.optimizer_state(optimizer)
    for i, (name, states) in enumerate(local["state"].items()):
        for key, value in states.items():
            if value is not None:
                keep(i, f"optimizer/{whole.first_name[name]}/{key}", name, torch.as_tensor(value))
    about = {
        "optimizer": kind_of_optimizer(optimizer),
        "param_groups": whole.groups_everywhere(local["param_groups"]),
        "meaning": whole.meaning,
        "extra": extra,
    }
    save_tensors(folder, state, about)


def load_checkpoint(folder: str | os.PathLike, model: ParallelModel, optimizer: Optimizer) -> dict[str, Any]:
    """Take model and optimizer from a checkpoint of any plan; returns ``extra``. All ranks call it.

    What is not as it was, but changes nothing in what the weights mean, such as dropout, is told in a warning.

    Raises:
        ValueError: the checkpoint is not there or damaged, or of another model or optimizer; nothing is changed.
    """
    save = checked(folder, together=True)
    _check_same(save, model, optimizer)
    whole, held = model.whole, [name for name, _ in model.module.named_parameters()]
    own = {whole.first_name[name] for name in held} | {name for name, _ in model.held_buffers()}
    tensors = load_tensors(save, [key for key in saved_tensors(save) if key.split("/")[1] in own])
    values: dict[str, Tensor] = {}
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        kind, name, *rest = key.split("/")
        if kind == "model":
            values[name] = tensor
        else:
            states.setdefault(name, {})[rest[0]] = tensor
    groups = save.about["param_groups"]
    model.load_optimizer_state_dict(optimizer, {"state": states, "param_groups": groups})
    model.data.load_parameters({name: whole.part(name, values[whole.first_name[name]]) for name in held})
    model.load_buffers(values)
    return save.about["extra"]


def _check_same(save: Save, model: ParallelModel, optimizer: Optimizer) -> None:
    """Raise a ValueError, on all ranks, if the checkpoint is of another model or optimizer."""
    about, whole = save.about, model.whole
    other, harmless = differences(about["meaning"], whole.meaning)
    here = {f"model/{name}": shape for name, shape in (whole.shapes | whole.buffers).items()}
    there = {key: tuple(t.size) for key, t in saved_tensors(save).items() if key.startswith("model/")}
    for key in here | there:
        if (old := there.get(key, "missing")) != (new := here.get(key, "missing")):
            other.append(f"{key.removeprefix('model/')} is {old} there, and {new} here")
    if other:
        raise ValueError(f"{save.folder} is a checkpoint of another model: {listed(other)}")
    if (old := about["optimizer"]) != (new := kind_of_optimizer(optimizer)):
        raise ValueError(f"{save.folder} is of another optimizer: {old} there, and {new} here")
    groups = whole.groups_everywhere(model.data.optimizer_state(optimizer)["param_groups"])
    old, new = ([set(group["params"]) for group in some] for some in (about["param_groups"], groups))
    if old != new:
        odd = sorted(set().union(*old) ^ set().union(*new))
        raise ValueError(
            f"{save.folder} was trained in other parameter groups: {len(old)} there, and {len(new)} here"
            + (f"; only one of them trains {', '.join(odd[:3])}" if odd else "")
        )
    for i, (group, own) in enumerate(zip(about["param_groups"], groups, strict=True)):
        for key in group.keys() - {"params", "lr", "initial_lr"}:
            if group[key] != (now := _as_json(own.get(key))):
                harmless.append(f"{key} of group {i} is {group[key]} as saved, and not {now}")
    if harmless and dist.get_rank() == 0:
        warnings.warn(f"{save.folder} goes on with other settings: {listed(harmless)}", stacklevel=3)


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def latest_checkpoint(folder: str | os.PathLike) -> Path | None:
    """The newest whole checkpoint among ``folder/step-…``, by its time; None: there is none.

    A warning names each newer one, and says why it is skipped. Where there are ranks, all of them call it.
    """
    save = newest_whole(folder, together=dist.is_initialized())
    return save and save.folder
