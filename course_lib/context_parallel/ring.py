"""Attention of this rank's queries to the keys of all ranks: passed around a ring (arXiv:2310.01889), or gathered.

A ring holds two ranks' keys at a time, and sends them beside the attention to the ones before. An all-gather
(arXiv:2407.21783, section 3.3.2) is a single message, and holds all of them in forward, and again in backward. Under
both a rank keeps its own tokens alone for backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from course_lib.attention.flash import without_autocast
from course_lib.context_parallel.order import Order, blocks_of_mask
from course_lib.context_parallel.tile import attend, attend_backward, merge
from course_lib.runtime import trace
from course_lib.runtime.native import all_gather, reduce_scatter


class RingCore(nn.Module):
    """Takes the place of a model's core of attention: its arguments and its result are those of this rank's tokens.

    Query ``(batch, heads, own, size)``, key and value ``(batch, kv_heads, own, size)``, or values of another size,
    which is that of the result; a mask as ``order.Cutter`` makes it.
    """

    def __init__(self, order: Order, group: ProcessGroup, gather: bool = False) -> None:
        super().__init__()
        self.order, self.group, self.gather = order, group, gather

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return ContextAttention.apply(q, k, v, mask, self.order, self.group, self.gather)

    def extra_repr(self) -> str:
        return f"{self.order}, {'all-gather' if self.gather else 'ring'}"


class ContextAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        order: Order,
        group: ProcessGroup,
        gather: bool,
    ) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        O = L = None
        view = View(order, group, mask, q.shape[2])
        with without_autocast(q.device):
            for source, kv in (gathered if gather else around)(packed(k, v), group):
                if (seen := view.of(source)) is None:
                    continue
                rows, keys, *how = seen
                part = attend(q[:, :, rows], *(x[:, :, keys] for x in unpacked(kv, k, v)), *how)
                if O is None:  # of the first keys that it sees at all, every row sees some
                    O, L = (x.to(wide) for x in part)
                else:
                    merge(O[:, :, rows], L[:, :, rows], *part)
        if O is None:
            O, L = q.new_zeros(*q.shape[:-1], v.shape[-1]), q.new_full(q.shape[:-1], -torch.inf, dtype=wide)
        O = O.to(q.dtype)
        ctx.save_for_backward(q, k, v, mask, O, L)
        ctx.order, ctx.group, ctx.gather = order, group, gather
        return O

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dO: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, O, L = ctx.saved_tensors
        view = View(ctx.order, ctx.group, mask, q.shape[2])
        dq = torch.zeros_like(q, dtype=L.dtype)

        def work(source: int, kv: Tensor) -> Tensor:
            """What the queries of this rank add to the gradient of those keys and values."""
            if (seen := view.of(source)) is None:
                return torch.zeros_like(kv)
            rows, keys, *how = seen
            own = (x[:, :, rows] for x in (dO, q, O, L))
            its = (x[:, :, keys] for x in unpacked(kv, k, v))
            more_q, *more = attend_backward(*own, *its, *how)
            dq[:, :, rows] += more_q
            if more[0].shape == k.shape:
                return packed(*more)
            whole = torch.zeros_like(kv)
            for part, seen_part in zip(unpacked(whole, k, v), more, strict=True):
                part[:, :, keys] = seen_part
            return whole

        dkv = (scattered if ctx.gather else brought_home)(work, packed(k, v), ctx.group)
        return dq.to(q.dtype), *unpacked(dkv, k, v), None, None, None, None


def packed(k: Tensor, v: Tensor) -> Tensor:
    """One message of keys and values, whose sizes may differ."""
    return torch.cat((k.flatten(), v.flatten()))


def unpacked(kv: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Views of it, in these shapes."""
    return kv[: k.numel()].view(k.shape), kv[k.numel() :].view(v.shape)


class View:
    """What the queries of this rank see of the keys of another one: slices of both, and a mask between them."""

    def __init__(self, order: Order, group: ProcessGroup, mask: Tensor | None, own: int) -> None:
        self.order, self.rank, self.own = order, group.rank(), own
        self.blocks = None if mask is None else blocks_of_mask(added(mask), group.size(), own)

    def of(self, source: int) -> tuple[slice, slice, bool, Tensor | None] | None:
        """Rows, keys, whether they are causal, and the mask; None: nothing."""
        if self.blocks is None:
            tile = self.order.tile(self.own, self.rank, source)
            return None if tile is None else (*tile, None)
        block = self.blocks[source]
        return None if block.isneginf().all() else (slice(None), slice(None), False, block)


def added(mask: Tensor) -> Tensor:
    """What is added to the scores: 0, or -inf where a boolean mask hides a key."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -torch.inf)


# ---- keys and values on their way --------------------------------------------------------------------------


def around(kv: Tensor, group: ProcessGroup) -> Iterator[tuple[int, Tensor]]:
    """Every rank and its keys and values, this one first. While some are used, the next are on their way."""
    rank, p = group.rank(), group.size()
    for step in range(p - 1):
        coming = Passing(kv, group, "keys passed on")
        yield (rank - step) % p, kv
        kv = coming.wait()
    yield (rank + 1) % p, kv


def brought_home(work: Callable[[int, Tensor], Tensor], kv: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of what all ranks' ``work`` gives for this rank's keys and values.

    It follows them around the ring one step behind, each rank adding its own, and the p-th step brings it home.
    """
    if group.size() == 1:
        return work(0, kv)
    following: Passing | None = None
    for source, kv_r in around(kv, group):
        total = work(source, kv_r)
        if following is not None:
            total += following.wait()
        following = Passing(total, group, "gradients of keys passed on")
    return following.wait()


class Passing:
    """A tensor goes to the next rank of the ring and that of the one before comes, until ``wait``."""

    def __init__(self, x: Tensor, group: ProcessGroup, name: str) -> None:
        rank, p = group.rank(), group.size()
        # Gloo takes no tensor of a GPU, where ranks share one.
        wire = "cpu" if dist.get_backend(group) == "gloo" else x.device
        self.out, self.device = x.to(wire), x.device  # it must live until it is sent
        self.came = torch.empty_like(self.out)
        self.end = trace.begin("communication", name)
        self.works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, self.out, group=group, group_peer=(rank + 1) % p),
                dist.P2POp(dist.irecv, self.came, group=group, group_peer=(rank - 1) % p),
            ]
        )

    def wait(self) -> Tensor:
        with trace.waiting():
            for work in self.works:
                work.wait()
        self.end()
        return self.came.to(self.device)


# ---- keys and values of all ranks at once -------------------------------------------------------------------


def gathered(kv: Tensor, group: ProcessGroup) -> Iterator[tuple[int, Tensor]]:
    every = kv.new_empty(group.size() * len(kv), *kv.shape[1:])
    with trace.waiting(), trace.span("communication", "all-gather keys"):
        all_gather(every, kv, group=group)
    yield from enumerate(every.unflatten(0, (group.size(), -1)))


def scattered(work: Callable[[int, Tensor], Tensor], kv: Tensor, group: ProcessGroup) -> Tensor:
    """As ``brought_home``, in one message."""
    addends = torch.cat([work(source, kv_r) for source, kv_r in gathered(kv, group)])
    own = torch.empty_like(kv)
    with trace.waiting(), trace.span("communication", "reduce-scatter keys"):
        reduce_scatter(own, addends, group=group)
    return own
