"""Parameters laid end to end in one buffer, of which every rank owns an equal part.

What is sharded is this buffer, not the tensors in it: a part may end in the middle of a matrix, so any model on
any number of ranks p splits evenly. The buffer is padded to a multiple of p, with at most p - 1 zeros: all parts
are then equally long, and one call on one tensor gathers or reduces them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.runtime import trace

# (output, input, group=, async_op=); torch 2.13 renamed the two collectives and warns where the old name is used.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class FlatParameters:
    """Some parameters of a model as one buffer. They become views into it: the model computes as before.

    Args:
        parameters: of one dtype, on one device.
        name: what to call it in timelines.
        group: the ranks that share it; None: all. They start with the values of its first rank.

    Attributes:
        full: (p * part,) all parameters, then the padding.
        shard: (part,) the part this rank owns, as a parameter that an optimizer can update. A view into
            ``full``, so updating it changes the model.
        gradient: (p * part,) this rank's own gradients, divided by p, before they are reduced; None until some
            arrive.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], name: str, group: ProcessGroup | None = None
    ) -> None:
        self.parameters, self.name, self.group = list(parameters), name, group
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.places: dict[nn.Parameter, tuple[int, torch.Size]] = {}  # where each starts, and its shape
        end = 0
        for p in self.parameters:
            self.places[p] = (end, p.shape)
            end += p.numel()
        self.end = end  # of the last parameter; padding follows
        self.part = -(-end // self.ranks)  # elements, rounded up

        self.full = self.pack([p.detach() for p in self.parameters])
        dist.broadcast(self.full, group=group, group_src=0)
        self.point_into(self.full)
        trainable = self.parameters[0].requires_grad
        self.shard = nn.Parameter(self.mine(self.full), requires_grad=trainable)
        self.gradient: Tensor | None = None

    @property
    def elements(self) -> int:
        """Of the buffer, padding included: what a collective moves."""
        return self.ranks * self.part

    def mine(self, flat: Tensor) -> Tensor:
        """The part of a flat tensor that this rank owns, as a view."""
        return flat[self.rank * self.part : (self.rank + 1) * self.part]

    def view(self, flat: Tensor, parameter: nn.Parameter) -> Tensor:
        """The place of a parameter in a flat tensor, in the parameter's shape."""
        start, shape = self.places[parameter]
        return flat[start : start + shape.numel()].view(shape)

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """One tensor for each parameter, laid end to end in a new flat tensor."""
        flat = torch.zeros(self.elements, dtype=tensors[0].dtype, device=self.parameters[0].device)
        for p, tensor in zip(self.parameters, tensors, strict=True):
            self.view(flat, p).copy_(tensor)
        return flat

    def gather(self, part: Tensor) -> list[Tensor]:
        """Everyone's parts of something that belongs to the parameters, as one tensor in the memory of the CPU
        for each parameter. Every rank of the group must call it."""
        flat = part.new_empty(self.elements)
        all_gather(flat, part.detach(), group=self.group)
        return [self.view(flat, p).to("cpu", copy=True) for p in self.parameters]

    def point_into(self, flat: Tensor) -> None:
        """Make the parameters views into ``flat``."""
        for parameter in self.parameters:
            parameter.data = self.view(flat, parameter)

    @torch.no_grad()
    def assign(self, tensors: Sequence[Tensor]) -> None:
        """New values for all parameters, of which this rank keeps what it holds."""
        whole = self.pack(tensors)
        self.shard.copy_(self.mine(whole))
        if self.is_gathered:
            self.full.copy_(whole)

    # ---- gradients ----------------------------------------------------------------------------------------

    def take_gradient(self, parameter: nn.Parameter) -> None:
        """Move what backward has left in ``parameter.grad``, divided by p, to its place in the flat gradient."""
        if self.gradient is None:
            self.gradient, self.arrived = torch.empty_like(self.full), set()
        place = self.view(self.gradient, parameter)
        if parameter in self.arrived:  # a second backward before the step
            place.add_(parameter.grad, alpha=1 / self.ranks)
        else:
            torch.div(parameter.grad, self.ranks, out=place)
        self.arrived.add(parameter)
        parameter.grad = None

    def complete_gradient(self) -> Tensor:
        """The flat gradient, ready to be summed over the ranks.

        What did not take part in the backward is zero. The mean of an earlier backward, which this rank alone has
        of its own part, goes on top: the sum over the ranks includes it once.
        """
        if self.gradient is None:
            self.gradient, self.arrived = torch.zeros_like(self.full), set(self.parameters)
        for parameter in self.parameters:
            if parameter not in self.arrived:
                self.view(self.gradient, parameter).zero_()
        self.gradient[self.end :].zero_()
        if self.shard.grad is not None:
            self.mine(self.gradient).add_(self.shard.grad)
        return self.gradient

    # ---- stage 3: the full buffer comes and goes ----------------------------------------------------------

    @property
    def is_gathered(self) -> bool:
        return self.full.untyped_storage().nbytes() > 0

    def shard_only(self) -> None:
        """Keep nothing but the shard, from now on in memory of its own."""
        self.shard.data = self.shard.data.clone()
        self.free()

    def free(self) -> None:
        """Give back the memory of ``full``. The tensor itself stays: what autograd has saved of it, views
        too, is whole again once ``full`` is."""
        self.full.untyped_storage().resize_(0)
        nothing = self.full.new_empty(0)
        for parameter in self.parameters:
            parameter.data = nothing  # so that whoever uses it now meets a wrong shape, not freed memory

    @torch.no_grad()
    def unshard(self) -> None:
        """All-gather the shards into the memory of ``full``."""
        if not self.is_gathered:
            self.full.untyped_storage().resize_(self.elements * self.full.element_size())
            with trace.span("communication", f"all-gather {self.name}"):
                all_gather(self.full, self.shard.detach(), group=self.group)
            self.point_into(self.full)


def storage_bytes(tensors: Iterable[object]) -> int:
    """Of the memory behind tensors, shared memory counted once; what is no tensor counts nothing."""
    storages = [t.untyped_storage() for t in tensors if isinstance(t, Tensor)]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())
