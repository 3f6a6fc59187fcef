"""Tensor parallelism (Megatron-LM, Shoeybi et al., arXiv:1909.08053): each rank multiplies with its part of a matrix.

An MLP is Z = GeLU(X A) B. Cut A by columns and B by rows into p parts; rank i holds A_i and B_i:

    Y_i = GeLU(X A_i)        no messages: GeLU works on each column by itself
    Z = Y_1 B_1 + … + Y_p B_p        one sum over the ranks

Attention is cut alike, because heads work by themselves: the query, key and value matrices by columns, a share of the
heads on each rank, and the output projection by rows. X enters such a region through ``f`` and Z leaves it
through ``g``, two operators that are each other's backward:

    f    forward: nothing is sent       backward: all-reduce of the gradient of X, of which each rank has a part
    g    forward: all-reduce of Z       backward: nothing is sent, because every rank has the gradient of Z

So a layer has two all-reduces in forward and two in backward. Shapes in comments: ``tp`` is the number of ranks p.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from course_lib.runtime import trace
from course_lib.tensor_parallel.shard import Shard, equal_shard


class OperatorF(torch.autograd.Function):
    """Forward: the tensor itself. Backward: the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return sum_over_ranks(gradient, ctx.group, "all-reduce f"), None


class OperatorG(torch.autograd.Function):
    """Forward: the sum of the ranks' tensors. Backward: the gradient itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        return sum_over_ranks(x, group, "all-reduce g")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def f(x: Tensor, group: ProcessGroup) -> Tensor:
    """What every rank has in full enters a computation of which each rank does a part."""
    return OperatorF.apply(x, group) if group.size() > 1 else x


def g(x: Tensor, group: ProcessGroup) -> Tensor:
    """The ranks' parts of a sum leave it as the sum, which every rank has."""
    return OperatorG.apply(x, group) if group.size() > 1 else x


def sum_over_ranks(x: Tensor, group: ProcessGroup, name: str) -> Tensor:
    # A copy, because the all-reduce overwrites it, and autograd may use x elsewhere.
    total = x.clone(memory_format=torch.contiguous_format)
    with trace.span("communication", name):
        dist.all_reduce(total, group=group)
    return total


Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # like F.linear


class ColumnParallelLinear(nn.Module):
    """Y_i = X A_i + b_i: ``(batch, seq, in)`` to ``(batch, seq, out/tp)``.

    X must have entered through ``f``, once for all layers that read it: query, key and value share one. Where
    ``shard.copies`` ranks hold the same columns (heads of keys and values), each computes a part of their gradient, so
    the weight enters through ``f``, too.

    Args:
        linear: the whole layer; it is left as it is. PyTorch stores A transposed, so a column of A is a row of its
            weight, ``(out, in)``.
        mesh: the p ranks, one axis.
        shard: this rank's columns; by default one p-th of them.
        multiply: a function like ``F.linear``; sequence parallelism has one of its own.
    """

    def __init__(
        self,
        linear: nn.Linear,
        mesh: DeviceMesh,
        shard: Shard | None = None,
        multiply: Multiply = F.linear,
    ) -> None:
        super().__init__()
        shard = shard or equal_shard(linear.out_features, mesh)
        self.mesh, self.multiply = mesh, multiply
        self.in_features = linear.in_features
        self.out_features = shard.length
        # weight and bias, where there is one
        self.shards = {name: shard for name, _ in linear.named_parameters()}
        self.weight = part_of(linear.weight, shard)  # (out/tp, in)
        self.bias = part_of(linear.bias, shard)  # (out/tp,)
        if shard.copies > 1:
            group_of_copies(mesh, shard.copies)  # all ranks make it now

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if (copies := self.shards["weight"].copies) > 1:
            group = group_of_copies(self.mesh, copies)
            weight = f(weight, group)
            bias = None if bias is None else f(bias, group)
        return self.multiply(x, weight, bias)

    def extra_repr(self) -> str:
        whole = self.shards["weight"].whole
        return f"{self.in_features} to {self.out_features} of {whole} columns"


class RowParallelLinear(nn.Module):
    """Z = g(Y_i B_i) + b: ``(batch, seq, in/tp)`` to ``(batch, seq, out)``. The bias is added once, after the sum.

    Args:
        linear: the whole layer; it is left as it is. A row of B is a column of its weight, ``(out, in)``.
        mesh: the p ranks, one axis.
        shard: this rank's rows; by default one p-th of them.
    """

    def __init__(
        self,
        linear: nn.Linear,
        mesh: DeviceMesh,
        shard: Shard | None = None,
    ) -> None:
        super().__init__()
        rows = linear.in_features
        shard = shard or equal_shard(rows, mesh, dim=1, what="rows")
        self.mesh = mesh
        self.in_features = shard.length
        self.out_features = linear.out_features
        self.multiply: Multiply = F.linear
        self.shards = {"weight": shard}  # every rank has the whole bias
        self.weight = part_of(linear.weight, shard)  # (out, in/tp)
        self.bias = part_of(linear.bias, None)  # (out,)

    def forward(self, y: Tensor) -> Tensor:
        z = self.leave(self.multiply(y, self.weight, None))
        return z if self.bias is None else z + self.replicated(self.bias)

    def leave(self, z: Tensor) -> Tensor:
        return g(z, self.mesh.get_group())

    def replicated(self, bias: Tensor) -> Tensor:
        """Every rank computes the whole gradient of the bias."""
        return bias

    def extra_repr(self) -> str:
        whole = self.shards["weight"].whole
        return f"{self.in_features} of {whole} rows to {self.out_features}"


def part_of(
    parameter: nn.Parameter | None,
    shard: Shard | None,
) -> nn.Parameter | None:
    """A parameter with this rank's part of another one, trainable if that one is; None: all of it."""
    if parameter is None:
        return None
    values = parameter.detach()
    own = shard.of(values) if shard else values
    return nn.Parameter(own.clone(), parameter.requires_grad)


_groups_of_copies: weakref.WeakKeyDictionary[ProcessGroup, dict[int, ProcessGroup]] = (
    weakref.WeakKeyDictionary()
)


def group_of_copies(mesh: DeviceMesh, copies: int) -> ProcessGroup:
    """The ``copies`` neighbouring ranks of the mesh that hold the same part as this one."""
    whole = mesh.get_group()
    if copies == mesh.size():
        return whole
    known = _groups_of_copies.setdefault(whole, {})
    if copies not in known:
        ranks = dist.get_process_group_ranks(whole)
        first = mesh.get_local_rank() // copies * copies
        known[copies] = dist.new_group(ranks[first : first + copies], use_local_synchronization=True)
    return known[copies]
