"""The first rank's parameters and buffers on every rank, in one message for each dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup


def broadcast_state(module: nn.Module, group: ProcessGroup | None = None) -> None:
    """Overwrite parameters and buffers with those of the group's first rank, so that all ranks start equal."""
    broadcast_together([*module.parameters(), *module.buffers()], group)


def broadcast_buffers(module: nn.Module, group: ProcessGroup | None = None) -> None:
    """Overwrite buffers, such as BatchNorm's running statistics, with those of the group's first rank."""
    broadcast_together(list(module.buffers()), group)


@torch.no_grad()
def broadcast_together(tensors: Sequence[Tensor], group: ProcessGroup | None = None) -> None:
    """Overwrite ``tensors`` with the values they have on the group's first rank.

    Tensors of one dtype and device are laid end to end and travel in one message, because a message for each
    would pay the latency as often as there are tensors.
    """
    for kind in dict.fromkeys((t.dtype, t.device) for t in tensors):
        alike = [t for t in tensors if (t.dtype, t.device) == kind]
        flat = torch.cat([t.reshape(-1) for t in alike])
        dist.broadcast(flat, group=group, group_src=0)
        for t, values in zip(alike, flat.split([t.numel() for t in alike]), strict=True):
            t.copy_(values.view_as(t))
