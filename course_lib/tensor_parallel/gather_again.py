"""Sequence parallelism keeps a p-th of a region's input, and gathers it once more in backward.

``F.linear`` behind ``g`` would save the gathered input for the gradient of its weight. Megatron-LM saves this rank's
shard and gathers again, while it computes the gradient of the input (arXiv:2205.05198, section 4.2.2): one more
all-gather a region, and p times fewer bytes saved.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.tensor_parallel.sequence import Gathering, gather_sequence


def gather_and_keep_shard(x: Tensor, group: ProcessGroup) -> Tensor:
    """g. The result remembers its shard, so that ``linear_of_gathered`` can keep that instead of the whole."""
    whole = gather_sequence(x, group)
    if whole is not x:
        whole.shard, whole.again = x.detach(), GatherAgain(group)
    return whole


class GatherAgain:
    """Gathers an input again in backward, once for all layers that read it (query, key and value), then lets it go."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.readers = self.left = 0
        self.gathering: Gathering | None = None
        self.whole: Tensor | None = None

    def start(self, shard: Tensor) -> None:
        if self.left == 0:
            self.left = self.readers
            self.gathering = Gathering(shard, self.group, "all-gather g again")

    def finish(self) -> Tensor:
        if self.gathering is not None:
            self.whole, self.gathering = self.gathering.wait(), None
        whole = self.whole
        self.left -= 1
        if self.left == 0:
            self.whole = None
        return whole


class LinearOfGathered(torch.autograd.Function):
    """``F.linear`` which keeps the shard of its input, and gathers it while the gradient of the input is computed."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shard: Tensor, again: GatherAgain
    ) -> Tensor:
        ctx.save_for_backward(shard, weight)
        ctx.again = again
        again.readers += ctx.needs_input_grad[1]
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (shard, weight), again = ctx.saved_tensors, ctx.again
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)  # (batch * seq, out/tp)
        dx = dweight = dbias = None
        if needs_weight:
            again.start(shard)
        if needs_x:
            # (batch, seq, in), a part of a sum
            dx = gradient @ weight.to(gradient.dtype)
        if needs_weight:
            whole = again.finish().flatten(0, -2)  # (batch * seq, in)
            dweight = rows.T @ whole.to(gradient.dtype)  # (out/tp, in)
        if needs_bias:
            dbias = rows.sum(0)
        return dx, dweight, dbias, None, None


def linear_of_gathered(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear`` for a ``ColumnParallelLinear`` behind ``gather_sequence``."""
    if not hasattr(x, "again"):
        return F.linear(x, weight, bias)
    return LinearOfGathered.apply(x, weight, bias, x.shard, x.again)
