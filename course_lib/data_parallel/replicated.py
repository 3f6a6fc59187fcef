"""Parameters that FSDP leaves on every rank, because they are too small to be worth a gather or used everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh


class ReplicatedParameters:
    """Parameters whose gradients are averaged over all ranks, as DDP does, at the end of backward.

    Args:
        mesh: all ranks. They start with the values of the first.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], mesh: DeviceMesh) -> None:
        self.parameters, self.mesh = list(parameters), mesh
        device = torch.device(mesh.device_type)
        for p in self.parameters:
            p.data = p.data.to(device)
            self._over_all_ranks(lambda group, p=p: dist.broadcast(p.data, group=group, group_src=0))

    def _over_all_ranks(self, collective: Callable[[ProcessGroup], object]) -> None:
        for axis in range(self.mesh.ndim):
            collective(self.mesh.get_group(axis))

    @torch.no_grad()
    def average_gradients(self) -> None:
        """One message for each dtype. What no rank has used stays without a gradient: its sum is -0.0 (see
        ``ShardedFlat.reduction``)."""
        trained = [p for p in self.parameters if p.requires_grad]
        for dtype in dict.fromkeys(p.dtype for p in trained):
            same = [p for p in trained if p.dtype == dtype]
            flat = torch.cat([self._contribution(p) for p in same])
            self._over_all_ranks(lambda group, flat=flat: dist.all_reduce(flat, group=group))
            for p, mean in zip(same, flat.split([p.numel() for p in same]), strict=True):
                if p.grad is not None:
                    p.grad.copy_(mean.view_as(p))
                elif not ((mean == 0) & mean.signbit()).all():
                    p.grad = mean.view_as(p)

    def _contribution(self, parameter: nn.Parameter) -> Tensor:
        if parameter.grad is None:
            return torch.full_like(parameter, -0.0).flatten()
        return torch.zeros_like(parameter).add_(parameter.grad, alpha=1 / self.mesh.size()).flatten()
