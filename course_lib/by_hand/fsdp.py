"""FSDP by hand: a rank keeps 1/p of each block's parameters, gradients
and optimizer states. The block's parameters are gathered just before
they are needed and freed after it; its gradients are scattered.

Zhao et al., arXiv:2304.11277; ZeRO stage 3, arXiv:1910.02054. Psi is
the number of bytes of the parameters, p the number of ranks. A rank
gathers twice and scatters once: 3 (p-1)/p Psi a step, 1.5 times DDP's.

Second rung, ``prefetch``: the next block is gathered while this one
computes. Two blocks are whole at once, and no rank waits for weights.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from course_lib.runtime import trace

# torch 2.13 has renamed the two, and warns of their old names.
all_gather = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)
reduce_scatter = getattr(
    dist, "reduce_scatter_single", dist.reduce_scatter_tensor
)


class Unit:
    """Parameters that lie end to end in one buffer, ``whole``, which is
    empty most of the time. This rank keeps ``shard``, its part."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        p, rank = dist.get_world_size(), dist.get_rank()
        self.parameters = parameters
        whole = torch.cat([w.detach().flatten() for w in parameters])
        padding = whole.new_zeros(-len(whole) % p)  # equal shards
        self.whole = torch.cat([whole, padding])  # (p * size,)
        dist.broadcast(self.whole, 0)  # all ranks start alike
        # (size,): what the optimizer updates, element by element
        self.shard = nn.Parameter(self.whole.chunk(p)[rank].clone())
        sizes = [w.numel() for w in parameters]
        parts = self.whole[: sum(sizes)].split(sizes)
        for w, part in zip(parameters, parts, strict=True):
            w.data = part.view(w.shape)  # a view of ``whole``, for good
            w.register_post_accumulate_grad_hook(self.gradient_is_ready)
        self.missing = len(parameters)
        self.gathering = None
        self.before = self.after = None  # units to prefetch, or None
        self.reshard()

    def attach(
        self, module: nn.Module, reshard_after_forward: bool
    ) -> None:
        module.register_forward_pre_hook(
            lambda *_: self.unshard(self.after)
        )
        if reshard_after_forward:
            module.register_forward_hook(self.after_forward)

    def start_gathering(self) -> None:
        """All-gather: (size,) on each rank -> (p * size,) on all."""
        whole = self.whole
        whole.untyped_storage().resize_(whole.numel() * whole.itemsize)
        end = trace.begin("communication", "all-gather")
        self.gathering = all_gather(
            whole, self.shard.detach(), async_op=True
        )
        self.gathering.get_future().add_done_callback(end)

    def unshard(self, next_unit: "Unit | None" = None) -> None:
        if self.gathering is None:  # nobody has prefetched it
            self.start_gathering()
        with trace.waiting():
            self.gathering.wait()
        self.gathering = None
        if next_unit is not None:
            next_unit.start_gathering()  # arrives while we compute

    def reshard(self) -> None:
        """The trick: only the bytes are freed. Parameters, and what
        autograd has saved of them, stay views of this buffer, and are
        valid again as soon as it is gathered again."""
        self.whole.untyped_storage().resize_(0)

    def after_forward(self, module, inputs, output: Tensor) -> None:
        self.reshard()
        if output.requires_grad:  # backward begins with its gradient
            register_multi_grad_hook(
                [output], lambda _: self.unshard(self.before), mode="any"
            )

    def gradient_is_ready(self, _: Tensor) -> None:
        """With the last gradient this unit's backward is over: each
        rank gets its shard of the mean."""
        self.missing -= 1
        if self.missing:
            return
        p = dist.get_world_size()
        flat = torch.cat([w.grad.flatten() for w in self.parameters])
        padding = flat.new_zeros(self.whole.numel() - len(flat))
        flat = torch.cat([flat, padding]) / p  # (p * size,)
        mean = torch.empty_like(self.shard)  # (size,)
        with (
            trace.waiting(),
            trace.span("communication", "reduce-scatter"),
        ):
            reduce_scatter(mean, flat)
        old = self.shard.grad  # of an earlier microbatch
        self.shard.grad = mean if old is None else old + mean
        for w in self.parameters:
            w.grad = None
        self.missing = len(self.parameters)
        self.reshard()


def fsdp(model: nn.Module, blocks, prefetch: bool = False) -> list[Unit]:
    """Shards ``model`` in place: a unit for each of its ``blocks``, in
    the order in which they run, and one for all other parameters, the
    root. Every parameter must get a gradient.

    Give the units' ``shard`` to the optimizer."""
    units = [Unit(list(block.parameters())) for block in blocks]
    taken = {w for unit in units for w in unit.parameters}
    root = Unit([w for w in model.parameters() if w not in taken])
    for unit, block in zip(units, blocks, strict=True):
        unit.attach(block, reshard_after_forward=True)
    # Backward begins with the root: freeing it would save no peak.
    root.attach(model, reshard_after_forward=False)
    if prefetch:
        # A unit prefetches its neighbour: forward the next one,
        # backward the one before.
        for first, second in zip([root, *units], units, strict=False):
            first.after = second
            second.before = first if first is not root else None
    return [root, *units]


def gradient_norm(units: list[Unit]) -> Tensor:
    """Of the whole gradient. Norms do not add up, squares do."""
    total = sum(unit.shard.grad.square().sum() for unit in units)
    dist.all_reduce(total)
    return total.sqrt()


def train(model, batches, make_optimizer, loss_fn, prefetch=False):
    """Yields each step's loss, of this rank's samples, and the norm of
    the averaged gradient; at the end ``model`` is whole again."""
    units = fsdp(model, model.blocks, prefetch)
    optimizer = make_optimizer([unit.shard for unit in units])
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        norm = gradient_norm(units)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), norm
    for unit in units:
        unit.unshard()  # to save it, or to go on without FSDP


RUNGS = {
    "gather, free, scatter": {},
    "prefetch": {"prefetch": True},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand import main

    main(train, RUNGS, zero=3)
