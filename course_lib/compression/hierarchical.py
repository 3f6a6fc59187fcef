"""Bagua's hierarchical exchange (arXiv:2107.01499): the slow network carries one message for each node.

The ranks of a node add up over their fast links, one of them exchanges the sums with the other nodes' and hands the
result on. Between nodes any method of this folder may send.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from course_lib.compression.hook import AllReduce, CommHook, GradBucket


@dataclass
class SumOfNode:
    """A bucket as the group of the nodes' first ranks sees it."""

    name: str
    parameters: list[Tensor]
    buffer: Tensor
    views: list[Tensor]
    group: dist.ProcessGroup


class Hierarchical(CommHook):
    """The average of all ranks, in two levels.

    Args:
        node: the ranks of this rank's own node.
        across: this rank and those that have its place in the other nodes; only that of the first ranks sends.
        between: how sums are sent from node to node; by default an all-reduce.
    """

    def __init__(
        self, node: dist.ProcessGroup, across: dist.ProcessGroup, between: CommHook | None = None
    ) -> None:
        super().__init__()
        self.node, self.across, self.between = node, across, between or AllReduce()

    def exchange(self, bucket: GradBucket) -> Iterator[dist.Work]:
        yield dist.all_reduce(bucket.buffer, group=self.node, async_op=True)
        if dist.get_rank(self.node) == 0:
            sums = SumOfNode(bucket.name, bucket.parameters, bucket.buffer, bucket.views, self.across)
            yield from self.between.exchange(sums)
        yield dist.broadcast(bucket.buffer, group=self.node, group_src=0, async_op=True)
