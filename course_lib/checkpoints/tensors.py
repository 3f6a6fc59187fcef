"""Saves of tensors that ranks write together, in the format of ``torch.distributed.checkpoint``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from course_lib.checkpoints.manifest import Save
from course_lib.checkpoints.saves import write_save


class Writer(dcp.FileSystemWriter):
    """Of what PyTorch raises for a full disk only the text would reach the other ranks, and it does not say so."""

    def write_data(self, *args: Any) -> Any:
        try:
            return super().write_data(*args)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def save_tensors(folder: str | os.PathLike, tensors: Mapping[str, Tensor], about: dict[str, Any]) -> None:
    """Write what this rank has into the save ``folder``. All ranks call it; see ``write_save``."""
    together = dist.is_initialized()
    rank = dist.get_rank() if together else 0

    def write(part: Path) -> list[str]:
        try:
            dcp.save(dict(tensors), storage_writer=Writer(part), no_dist=not together)
        except CheckpointException as error:  # on every rank; it holds the tracebacks of those that failed
            raise next(iter(error.failures.values()))[0] from None
        own = [path.name for path in part.glob(f"__{rank}_*")]
        return [*own, ".metadata"] if rank == 0 else own

    write_save(folder, write, about, together=together)


def saved_tensors(save: Save) -> dict[str, Any]:
    """Name -> ``size`` and ``properties.dtype`` of each tensor."""
    return dcp.FileSystemReader(str(save.folder)).read_metadata().state_dict_metadata


def load_tensors(save: Save, names: Iterable[str]) -> dict[str, Tensor]:
    """Those that this rank asks for, in the CPU's memory. All ranks call it."""
    found = saved_tensors(save)
    tensors = {name: torch.empty(found[name].size, dtype=found[name].properties.dtype) for name in names}
    dcp.load(tensors, checkpoint_id=str(save.folder), no_dist=not dist.is_initialized())
    return tensors
