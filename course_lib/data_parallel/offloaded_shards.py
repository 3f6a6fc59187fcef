"""FSDP whose shards rest in the CPU's memory, together with their gradients and the optimizer's states."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from course_lib.data_parallel.fsdp_unit import ShardedFlat


class OffloadedFlat(ShardedFlat):
    """A flat buffer on the device whose shard rests in pinned memory of the CPU. A gather copies the shard to the
    device first, and a reduction copies the averaged gradient back.

    Args:
        offload: False: the shard stays on the device.
    """

    def __init__(self, *args: Any, offload: bool = False, **settings: Any) -> None:
        self.offload = offload
        super().__init__(*args, **settings)

    def resting_shard(self) -> Tensor:
        shard = super().resting_shard()
        return shard.cpu().pin_memory() if self.offload and shard.is_cuda else shard

    def own_shard(self) -> Tensor:
        return super().own_shard().to(self.full.device, non_blocking=True)

    @torch.no_grad()
    def average(self, gradient: Tensor, mean: Tensor | None = None) -> Generator[None, None, Tensor]:
        mean = yield from super().average(gradient, mean)
        return mean.to(self.shard.device)
