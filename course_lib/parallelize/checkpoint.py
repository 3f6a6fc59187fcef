"""Checkpoints that any plan can load, through ``torch.distributed.checkpoint``.

A checkpoint holds each parameter once and whole, and so each of the optimizer's states. While one is saved the parts of
one parameter after the other are gathered, and the ranks that hold the same layers take turns in keeping it. So all
ranks write, each about as much. To load it, each rank reads what belongs to its layers, and takes its part.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.optim import Optimizer

from course_lib.parallelize.parallel_model import ParallelModel

METADATA = ".metadata"  # PyTorch writes this file when all others are there


def save_checkpoint(
    folder: str | os.PathLike, model: ParallelModel, optimizer: Optimizer, /, **extra: Any
) -> None:
    """Write model and optimizer into ``folder``. All ranks call it; they must see the same folder.

    Args:
        extra: whatever else is to be found again, such as ``step=100``; rank 0's counts.
    """
    mesh, whole = model.mesh, model.whole
    keepers = mesh["dp"].size() * mesh["tp"].size()  # the ranks that hold the same layers
    me = mesh["dp"].get_local_rank() * mesh["tp"].size() + mesh["tp"].get_local_rank()
    state: dict[str, Any] = {}

    def keep(number: int, key: str, name: str, part: Tensor) -> None:
        tensor = whole.on_tp(name, part) if part.dim() else part.detach().cpu()
        if number % keepers == me:
            state[key] = tensor

    for i, (name, part) in enumerate(model.data.parameters()):
        keep(i, f"model/{whole.first_name[name]}", name, part)
    local = model.data.optimizer_state(optimizer)
    for i, (name, states) in enumerate(local["state"].items()):
        for key, value in states.items():
            if value is not None:
                keep(i, f"optimizer/{whole.first_name[name]}/{key}", name, torch.as_tensor(value))
    groups = whole.groups_everywhere(local["param_groups"])
    about = json.dumps({"param_groups": groups, "extra": extra})
    dcp.save(state | {"about": about}, checkpoint_id=str(folder))


def load_checkpoint(folder: str | os.PathLike, model: ParallelModel, optimizer: Optimizer) -> dict[str, Any]:
    """Take model and optimizer from a checkpoint of any plan; returns ``extra``. All ranks call it.

    Raises:
        ValueError: there is no complete checkpoint, or it is of another model; nothing is changed.
    """
    found = _contents(folder)
    whole, held = model.whole, [name for name, _ in model.module.named_parameters()]
    for name, shape in whole.shapes.items():
        entry = found.get(f"model/{name}")
        if entry is None or tuple(entry.size) != shape:
            there = "is not there" if entry is None else f"is {tuple(entry.size)} there"
            raise ValueError(f"{folder} is a checkpoint of another model: {name} {there}, and {shape} here")
    own = {whole.first_name[name] for name in held}
    wanted = [key for key in found if key != "about" and key.split("/")[1] in own]
    state: dict[str, Any] = {
        key: torch.empty(found[key].size, dtype=found[key].properties.dtype) for key in wanted
    }
    state["about"] = ""
    dcp.load(state, checkpoint_id=str(folder))
    about = json.loads(state.pop("about"))
    parameters: dict[str, Tensor] = {}
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        kind, name, *rest = key.split("/")
        if kind == "model":
            parameters[name] = tensor
        else:
            states.setdefault(name, {})[rest[0]] = tensor
    model.data.load_parameters({name: whole.part(name, parameters[whole.first_name[name]]) for name in held})
    model.load_optimizer_state_dict(optimizer, {"state": states, "param_groups": about["param_groups"]})
    return about["extra"]


def _contents(folder: str | os.PathLike) -> dict[str, Any]:
    """Name -> size and dtype of everything in a checkpoint."""
    if not (Path(folder) / METADATA).is_file():
        raise ValueError(f"{folder} holds no complete checkpoint")
    return dcp.FileSystemReader(str(folder)).read_metadata().state_dict_metadata


def latest_checkpoint(folder: str | os.PathLike) -> Path | None:
    """The newest complete checkpoint among ``folder/step-…``; None: there is none."""
    complete = sorted(path.parent for path in Path(folder).glob(f"step-*/{METADATA}"))
    return complete[-1] if complete else None
