"""Ulysses (arXiv:2309.14509): in place of some tokens of all heads, attention gets all tokens of some heads.

An all-to-all of queries, keys and values in one message, attention, and an all-to-all of its result. The ranks of a
group may have a part of the text only: then attention is that of a ring between groups (arXiv:2405.07719).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.context_parallel.order import Order, mask_of_part
from course_lib.runtime import trace


class HeadsCore(nn.Module):
    """Takes the place of a model's core of attention, and calls one; see ``ring.RingCore``.

    Where the p ranks of the group do not divide the heads of keys and values, they are repeated until it does.
    """

    def __init__(self, core: nn.Module, order: Order, group: ProcessGroup) -> None:
        super().__init__()
        self.core, self.order, self.group = core, order, group

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        p, own = self.group.size(), q.shape[2]
        k, v = (x.repeat_interleave(p // math.gcd(p, x.shape[1]), 1) for x in (k, v))
        # (batch, heads, own, size) -> (p, batch, own, heads / p * size), all three beside each other
        pieces = [x.unflatten(1, (p, -1)).permute(1, 0, 3, 2, 4).flatten(3) for x in (q, k, v)]
        together = Exchange.apply(torch.cat(pieces, 3), self.group)
        came = zip(together.split([x.shape[3] for x in pieces], 3), (q, k, v), strict=True)
        apart = (x.unflatten(3, (-1, before.shape[3])) for x, before in came)
        q, k, v = (x.permute(1, 3, 0, 2, 4).flatten(2, 3) for x in apart)  # (batch, heads / p, p own, size)
        masks = [] if mask is None else [mask_of_part(mask, self.order, self.group.rank(), own)]
        O = self.core(q, k, v, *masks)
        # (p, batch, heads / p, own, size)
        O = Exchange.apply(O.unflatten(2, (p, own)).movedim(2, 0), self.group)
        return O.movedim(0, 1).flatten(1, 2)


class Exchange(torch.autograd.Function):
    """Rank i's j-th part becomes rank j's i-th, forward and backward."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        parts = parts.contiguous()
        came = torch.empty_like(parts)
        with trace.waiting(), trace.span("communication", "all-to-all"):
            dist.all_to_all_single(came, parts, group=group)
        return came

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return Exchange.apply(gradient, ctx.group), None
