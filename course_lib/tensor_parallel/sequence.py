"""Sequence parallelism (Korthikanti et al., arXiv:2205.05198): norms and dropout on a p-th of the tokens each.

Tensor parallelism leaves norms, dropout and residual sums on every rank in full. Here the sequence is cut between the
regions of ``layers.py``: an all-reduce is a reduce-scatter and an all-gather, so ``f`` and ``g`` give way to

    g      enters a region      forward: all-gather         backward: reduce-scatter
    g-bar  leaves a region      forward: reduce-scatter     backward: all-gather

As many bytes are sent, and a rank keeps a p-th of what is saved between the regions. (That paper calls the operators
of ``layers.py`` f and f-bar; g and g-bar are the functions ``gather_sequence`` and ``scatter_sequence`` here.)

Shapes in comments: ``tp`` is the number of ranks p.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from course_lib.runtime import trace
from course_lib.runtime.native import all_gather, reduce_scatter
from course_lib.tensor_parallel.layers import RowParallelLinear, f
from course_lib.tensor_parallel.vocab import VocabParallelEmbedding

# ---- the operators ----------------------------------------------------------------------------------------


class GatherSequence(torch.autograd.Function):
    """g: ``(batch, seq/tp, hidden)`` to ``(batch, seq, hidden)``. Each rank's gradient is a part of a sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return Gathering(x, group, "all-gather g").wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        own = sum_to_shards(gradient, ctx.group, "reduce-scatter g")
        return own, None


class ScatterSequence(torch.autograd.Function):
    """g-bar: the sum of the ranks' ``(batch, seq, hidden)``, of which each gets its ``(batch, seq/tp, hidden)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return sum_to_shards(x, group, "reduce-scatter g-bar")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        whole = Gathering(gradient, ctx.group, "all-gather g-bar").wait()
        return whole, None


class WholeSequence(torch.autograd.Function):
    """Gather what all ranks go on with in full: each then has the whole gradient, so backward takes its part of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return Gathering(x, group, "all-gather the whole sequence").wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.chunk(ctx.group.size(), dim=1)[ctx.group.rank()], None


class Gathering:
    """An all-gather of ``(batch, seq/tp, hidden)``, which is under way until ``wait``."""

    def __init__(self, x: Tensor, group: ProcessGroup, name: str) -> None:
        self.x, self.ranks = x.contiguous(), group.size()
        # (tp * batch, seq/tp, hidden)
        self.parts = x.new_empty(self.ranks * x.shape[0], *x.shape[1:])
        self.end = trace.begin("communication", name)
        self.work = all_gather(self.parts, self.x, group=group, async_op=True)

    def wait(self) -> Tensor:
        self.work.wait()
        self.end()
        parts = self.parts.unflatten(0, (self.ranks, -1))
        return parts.transpose(0, 1).flatten(1, 2)  # (batch, seq, hidden)


def sum_to_shards(x: Tensor, group: ProcessGroup, name: str) -> Tensor:
    check_sequence(x.shape[1], group.size())
    parts = x.unflatten(1, (group.size(), -1))  # (batch, tp, seq/tp, hidden)
    parts = parts.transpose(0, 1).contiguous()
    own = torch.empty_like(parts[0])  # (batch, seq/tp, hidden)
    with trace.span("communication", name):
        reduce_scatter(own, parts.flatten(0, 1), group=group)
    return own


def check_sequence(seq: int, ranks: int) -> None:
    if seq % ranks:
        raise ValueError(
            f"{ranks} ranks cannot share a sequence of {seq} tokens equally: pad it to a multiple"
        )


def gather_sequence(x: Tensor, group: ProcessGroup) -> Tensor:
    """g."""
    return GatherSequence.apply(x, group) if group.size() > 1 else x


def scatter_sequence(x: Tensor, group: ProcessGroup) -> Tensor:
    """g-bar."""
    return ScatterSequence.apply(x, group) if group.size() > 1 else x


def whole_sequence(x: Tensor, group: ProcessGroup) -> Tensor:
    """``(batch, seq/tp, hidden)`` to ``(batch, seq, hidden)`` for what every rank computes in full."""
    return WholeSequence.apply(x, group) if group.size() > 1 else x


# ---- regions that leave through g-bar -----------------------------------------------------------------------


class SequenceRowParallelLinear(RowParallelLinear):
    """``(batch, seq, in/tp)`` to ``(batch, seq/tp, out)``: it leaves through g-bar and adds the bias to its tokens."""

    def leave(self, z: Tensor) -> Tensor:
        return scatter_sequence(z, self.mesh.get_group())

    def replicated(self, bias: Tensor) -> Tensor:
        return f(bias, self.mesh.get_group())


class SequenceVocabParallelEmbedding(VocabParallelEmbedding):
    """``(batch, seq)`` tokens to ``(batch, seq/tp, hidden)``."""

    def leave(self, x: Tensor) -> Tensor:
        return scatter_sequence(x, self.mesh.get_group())


# ---- between the regions: every rank has all parameters and its own tokens ---------------------------------


def work_on_shard(module: nn.Module, mesh: DeviceMesh) -> None:
    """Let a norm compute on this rank's tokens, and sum the gradients of its parameters over the ranks.

    A parameter that all ranks have, of whose gradient each computes a part, enters through ``f`` as an input does.
    """
    module.forward = partial(_forward_on_shard, module, module.forward, mesh)


class EnterTogether(torch.autograd.Function):
    """``f`` for all parameters of a module: their gradients are summed in one message."""

    @staticmethod
    def forward(ctx: Any, group: ProcessGroup, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(p.view_as(p) for p in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        with trace.span("communication", "all-reduce f of parameters"):
            dist.all_reduce(flat, group=ctx.group)
        parts = flat.split([gradient.numel() for gradient in gradients])
        return None, *[part.view_as(g) for part, g in zip(parts, gradients, strict=True)]


def _forward_on_shard(
    module: nn.Module, forward: Callable[..., Any], mesh: DeviceMesh, *inputs: Any, **named: Any
) -> Any:
    own = {name: p for name, p in module._parameters.items() if p is not None}
    try:
        entered = EnterTogether.apply(mesh.get_group(), *own.values()) if mesh.size() > 1 else own.values()
        module._parameters.update(zip(own, entered, strict=True))
        return forward(*inputs, **named)
    finally:
        module._parameters.update(own)


def own_positions(ids: Tensor, group: ProcessGroup) -> Tensor:
    """Of something for each position, ``(…, seq)``, what belongs to this rank's tokens: ``(…, seq/tp)``."""
    check_sequence(ids.shape[-1], group.size())
    return ids.chunk(group.size(), dim=-1)[group.rank()]
