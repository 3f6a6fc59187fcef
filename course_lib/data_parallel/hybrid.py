"""Hybrid sharding: F ranks share one copy of the model, and several copies stand beside each other.

A gather among all ranks waits for the slowest link. Where the F ranks (the paper's sharding factor) are those of one
node, gathers and reduce-scatters stay inside the node, and only the averaged shard travels between the nodes.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.data_parallel.fsdp_unit import ShardedFlat
from course_lib.runtime import trace


class HybridFlat(ShardedFlat):
    """A flat buffer that other groups of F ranks hold, too.

    Args:
        replica_group: the ranks that hold the same shard in other copies; None: there is one copy.
    """

    def __init__(self, *args: Any, replica_group: ProcessGroup | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.replica_group = replica_group
        if replica_group is not None:
            self.copies = replica_group.size()
            first = self.shard.to(self.full.device)
            dist.broadcast(first, group=replica_group, group_src=0)  # all copies start as the first
            self.shard.copy_(first)

    @torch.no_grad()
    def average(self, gradient: Tensor, mean: Tensor | None = None) -> Generator[None, None, Tensor]:
        """Reduce-scatter among the ranks of this copy, then all-reduce of the shard among the copies."""
        mean = yield from super().average(gradient, mean)
        if self.replica_group is not None:
            self.reducing = [mean]
            arrived = trace.begin("communication", f"all-reduce {self.name}")
            work = dist.all_reduce(mean, group=self.replica_group, async_op=True)
            yield
            work.wait()
            arrived()
            self.reducing = []
        return mean
