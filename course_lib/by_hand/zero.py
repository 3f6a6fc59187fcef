"""ZeRO by hand: data parallelism in which no rank keeps what another
rank keeps already (Rajbhandari et al., arXiv:1910.02054).

An all-reduce is a reduce-scatter followed by an all-gather. ZeRO puts
the update between the two, where each rank has its shard of the mean
gradient. Psi is the number of parameters, p the number of ranks. Of

    stage 1   optimizer states
    stage 2   and gradients
    stage 3   and parameters

a rank keeps 1/p. Stages 1 and 2 send 2 (p-1)/p Psi numbers a step, as
DDP does; stage 3 gathers in forward and in backward: 3 (p-1)/p Psi.

Only for optimizers that update each element by itself: a shard has no
rows and columns.
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
    """Parameters that lie end to end in one buffer, ``whole``. This
    rank updates ``shard``, its part of it."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        p, rank = dist.get_world_size(), dist.get_rank()
        self.parameters = parameters
        whole = torch.cat([w.detach().flatten() for w in parameters])
        padding = whole.new_zeros(-len(whole) % p)  # equal shards
        self.whole = torch.cat([whole, padding])  # (p * size,)
        dist.broadcast(self.whole, 0)  # all ranks start alike
        sizes = [w.numel() for w in parameters]
        parts = self.whole[: sum(sizes)].split(sizes)
        for w, part in zip(parameters, parts, strict=True):
            w.data = part.view(w.shape)  # a view of ``whole``, for good
        # (size,): a view, too, so an update of it is one of ``whole``
        self.shard = nn.Parameter(self.whole.chunk(p)[rank])
        self.missing = len(parameters)

    def reduce_gradients(self) -> None:
        """(p * size,) on each rank -> its shard (size,) of the mean."""
        p = dist.get_world_size()
        flat = torch.cat([w.grad.flatten() for w in self.parameters])
        padding = flat.new_zeros(self.whole.numel() - len(flat))
        flat = torch.cat([flat, padding]) / p
        mean = torch.empty_like(self.shard)
        with (
            trace.waiting(),
            trace.span("communication", "reduce-scatter"),
        ):
            reduce_scatter(mean, flat)
        old = self.shard.grad  # of an earlier microbatch
        self.shard.grad = mean if old is None else old + mean
        for w in self.parameters:
            w.grad = None  # the whole gradient is freed here

    def gather_parameters(self) -> None:
        """(size,) on each rank -> (p * size,) on all."""
        with (
            trace.waiting(),
            trace.span("communication", "all-gather"),
        ):
            all_gather(self.whole, self.shard.detach())


class Zero1:
    """Optimizer states: each rank updates its shards, no others."""

    def __init__(self, model: nn.Module, blocks) -> None:
        """A unit for each of the model's ``blocks``, and one for all
        other parameters. Every parameter must get a gradient."""
        units = [Unit(list(block.parameters())) for block in blocks]
        taken = {w for unit in units for w in unit.parameters}
        others = [w for w in model.parameters() if w not in taken]
        self.units = [*units, Unit(others)]
        self.modules = [*blocks, model]

    def shards(self) -> list[nn.Parameter]:
        """What the optimizer gets."""
        return [unit.shard for unit in self.units]

    def after_backward(self) -> None:
        for unit in self.units:
            unit.reduce_gradients()

    def after_update(self) -> None:
        for unit in self.units:
            unit.gather_parameters()

    def gradient_norm(self) -> Tensor:
        """Of the whole gradient. Norms do not add up, squares do."""
        total = sum(s.grad.square().sum() for s in self.shards())
        dist.all_reduce(total)
        return total.sqrt()


class Zero2(Zero1):
    """And gradients: a unit's are reduced as soon as they are there, so
    those of one unit, not of all, are whole at a time."""

    def __init__(self, model: nn.Module, blocks) -> None:
        super().__init__(model, blocks)
        for unit in self.units:
            for w in unit.parameters:
                w.register_post_accumulate_grad_hook(
                    lambda _, u=unit: self.gradient_is_ready(u)
                )

    def gradient_is_ready(self, unit: Unit) -> None:
        unit.missing -= 1
        if unit.missing == 0:
            unit.missing = len(unit.parameters)
            self.end_of_backward(unit)

    def end_of_backward(self, unit: Unit) -> None:
        unit.reduce_gradients()

    def after_backward(self) -> None:
        """Backward has done it."""


class Zero3(Zero2):
    """And parameters: a unit is whole only while its module runs."""

    def __init__(self, model: nn.Module, blocks) -> None:
        super().__init__(model, blocks)
        for unit, module in zip(self.units, self.modules, strict=True):
            unit.shard.data = unit.shard.data.clone()  # its own memory
            self.free(unit)
            module.register_forward_pre_hook(
                lambda *_, u=unit: self.gather(u)
            )
            if module is not model:  # with which backward begins
                module.register_forward_hook(
                    lambda _, ins, out, u=unit: self.leave(u, out)
                )

    def gather(self, unit: Unit) -> None:
        whole = unit.whole
        whole.untyped_storage().resize_(whole.numel() * whole.itemsize)
        unit.gather_parameters()

    def free(self, unit: Unit) -> None:
        """The trick: only the bytes go. What autograd has saved stays a
        view of them, valid again as soon as they are gathered again."""
        unit.whole.untyped_storage().resize_(0)

    def leave(self, unit: Unit, output: Tensor) -> None:
        self.free(unit)
        if output.requires_grad:  # backward begins with its gradient
            register_multi_grad_hook(
                [output], lambda _: self.gather(unit), mode="any"
            )

    def end_of_backward(self, unit: Unit) -> None:
        unit.reduce_gradients()
        self.free(unit)

    def after_update(self) -> None:
        """Nothing is sent: the next forward gathers what it needs."""


def train(model, batches, make_optimizer, loss_fn, stage=Zero3):
    """Yields each step's loss, of this rank's samples, and the norm of
    the averaged gradient; at the end ``model`` is whole again."""
    zero = stage(model, model.blocks)
    optimizer = make_optimizer(zero.shards())
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        zero.after_backward()
        norm = zero.gradient_norm()
        optimizer.step()
        optimizer.zero_grad()
        zero.after_update()
        yield loss.detach(), norm
    if stage is Zero3:
        for unit in zero.units:
            zero.gather(unit)  # to save it


RUNGS = {
    "stage 1": {"stage": Zero1},
    "stage 2": {"stage": Zero2},
    "stage 3": {"stage": Zero3},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand import main

    main(train, RUNGS, zero={"stage 1": 1, "stage 2": 2, "stage 3": 3})
