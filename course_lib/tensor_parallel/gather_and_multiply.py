"""The ring all-gather of a layer's input, tile by tile with the product that follows it.

Y = X W^T needs the tokens of all ranks, but each tile of Y needs the tokens of one rank only. So a rank multiplies the
tile that it has while the ring brings the next one. Backward does the same the other way round: while one addend of
the gradient of X travels, the rank computes the next one. As many bytes are sent as without tiles.

Wang et al., "Overlap Communication with Dependent Computation via Decomposition" (ASPLOS 2023); Galaxy,
arXiv:2405.17245; PyTorch calls it async tensor parallelism.

Shapes in comments: ``seq`` is the whole length, ``seq_i`` that of rank i's part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.runtime import trace
from course_lib.runtime.collectives import _for_wire


class GatherAndMultiply(torch.autograd.Function):
    """``F.linear`` of all ranks' tokens: ``(batch, seq_i, in)`` to ``(batch, seq, out_i)``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, lengths: Sequence[int], group: ProcessGroup
    ) -> Tensor:
        p, me = group.size(), group.rank()
        tiles = [x.new_empty(x.shape[0], length, x.shape[2]) for length in lengths]
        tiles[me] = x
        products = list(tiles)
        for step in range(p):
            here, coming = (me - step) % p, (me - step - 1) % p
            wait = pass_on(tiles[here], tiles[coming], group) if step < p - 1 else None
            with trace.span("compute", f"tile {here}"):
                products[here] = F.linear(tiles[here], weight, bias)
            if wait is not None:
                tiles[coming] = wait()
        ctx.save_for_backward(torch.cat(tiles, dim=1), weight)
        ctx.lengths, ctx.group = lengths, group
        return torch.cat(products, dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), group = ctx.saved_tensors, ctx.group
        p, me = group.size(), group.rank()
        tiles = gradient.split(list(ctx.lengths), dim=1)
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        dx = (
            tiles[me - 1] @ weight if needs_x else None
        )  # rank i's addend of the tile of the rank on its left
        for step in range(p - 1) if needs_x else ():
            here = (me - step - 2) % p
            wait = pass_on(dx, tiles[here].new_empty(*tiles[here].shape[:2], x.shape[2]), group)
            with trace.span("compute", f"tile {here}"):
                addend = tiles[here] @ weight  # (batch, seq_here, in)
            dx = wait() + addend
        rows = gradient.flatten(0, 1)  # (batch * seq, out_i)
        dweight = rows.T @ x.flatten(0, 1) if needs_weight else None
        return dx, dweight, rows.sum(0) if needs_bias else None, None, None


def pass_on(t: Tensor, like: Tensor, group: ProcessGroup) -> Callable[[], Tensor]:
    """Start to send ``t`` to the right and to receive a tensor like ``like`` from the left; call the result for it."""
    p, me = group.size(), group.rank()
    outgoing, incoming = _for_wire(t, group), _for_wire(torch.empty_like(like), group)
    operations = []
    if outgoing.numel():
        operations.append(dist.P2POp(dist.isend, outgoing, group=group, group_peer=(me + 1) % p))
    if incoming.numel():
        operations.append(dist.P2POp(dist.irecv, incoming, group=group, group_peer=(me - 1) % p))
    end = trace.begin("communication", "tile passed on")
    works = dist.batch_isend_irecv(operations) if operations else []

    def wait(_kept: Tensor = outgoing) -> Tensor:  # its memory is read until the message has left
        for work in works:
            work.wait()
        end()
        return incoming.to(like.device)

    return wait


def gather_and_multiply(
    lengths: Sequence[int], group: ProcessGroup, x: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Called like ``F.linear`` behind its first two arguments: the tokens of each rank, and the ranks."""
    if group.size() == 1:
        return F.linear(x, weight, bias)
    return GatherAndMultiply.apply(x, weight, bias, lengths, group)
