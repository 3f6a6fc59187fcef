"""Parameters laid end to end in one flat buffer, of which every rank owns an equal part: its shard.

ZeRO and FSDP shard this buffer and not the tensors in it. A shard may end in the middle of a matrix, so any model can
be sharded over any number of ranks p. The buffer is padded with at most p - 1 zeros. All shards are then equally long,
and one collective on one tensor gathers or reduces all parameters of the buffer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.runtime import trace
from course_lib.runtime.native import all_gather, reduce_scatter


class FlatParameters:
    """The values, and the gradient, of some parameters, sharded over p ranks.

    Args:
        tensors: the values of the parameters, all of one dtype. Every rank starts with those of the first rank.
        name: what timelines call this buffer.
        group: the p ranks that own a shard each; None: all ranks.
        device: where the buffer lies; None: where the tensors are.

    Attributes:
        full: (p * shard_size,) all parameters, then the padding. FSDP and ZeRO 3 free and refill its memory.
        shard: (shard_size,) the elements of ``full`` that this rank owns.
        gradient: (p * shard_size,) this rank's own gradients, divided by p; None while there are none.
        reached: which parameters have a gradient in ``gradient``, by their position.

    Raises:
        ValueError: the tensors differ in dtype: one of them would silently be cast.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        name: str,
        group: ProcessGroup | None = None,
        device: torch.device | None = None,
    ) -> None:
        if len(dtypes := {str(t.dtype) for t in tensors}) > 1:
            raise ValueError(
                f"{name} would hold {' and '.join(sorted(dtypes))}: one flat buffer has one dtype"
            )
        self.name, self.group = name, group
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.copies = 1  # of the sharded model; hybrid sharding has several
        self.shapes = [t.shape for t in tensors]
        self.starts = [0, *accumulate(t.numel() for t in tensors)]
        self.shard_size = -(-self.starts[-1] // self.ranks)  # rounded up
        self.full = self.pack(tensors, device or tensors[0].device)
        dist.broadcast(self.full, group=group, group_src=0)
        self.shard = self.shard_of(self.full)
        self.gathering: tuple[dist.Work, Tensor] | None = None
        self.gradient: Tensor | None = None
        self.reached: set[int] = set()
        self.reducing: list[Tensor] = []  # gradients of collectives under way

    def shard_of(self, flat: Tensor) -> Tensor:
        """(p * shard_size,) -> (shard_size,): the elements that this rank owns, as a view."""
        return flat[self.rank * self.shard_size :][: self.shard_size]

    def view(self, flat: Tensor, i: int) -> Tensor:
        """The place of the i-th parameter in a flat tensor, in the parameter's shape."""
        return flat[self.starts[i] : self.starts[i + 1]].view(self.shapes[i])

    def pack(self, tensors: Sequence[Tensor], device: torch.device) -> Tensor:
        """One tensor for each parameter, laid end to end: (p * shard_size,); zeros where one has no values yet."""
        flat = torch.zeros(self.ranks * self.shard_size, dtype=tensors[0].dtype, device=device)
        for i, tensor in enumerate(tensors):
            if not tensor.is_meta:
                self.view(flat, i).copy_(tensor)
        return flat

    # ---- parameters: gather, unshard, reshard -----------------------------------------------------------------

    @property
    def storage(self) -> torch.UntypedStorage:
        """The memory of ``full``, of all views into it, and of all that autograd has saved of them."""
        return self.full.untyped_storage()

    def own_shard(self) -> Tensor:
        """What this rank contributes to the all-gather: (shard_size,), like ``full``."""
        return self.shard

    def gather(self) -> None:
        """Start the all-gather of the shards into ``full``, unless ``full`` is there or on its way."""
        if self.storage.nbytes() == 0:
            self.storage.resize_(self.full.numel() * self.full.element_size())
            shard = self.own_shard().detach()
            arrived = trace.begin("communication", f"all-gather {self.name}")
            # Through .data, so that autograd does not take this for a change of the views that it has saved.
            work = all_gather(self.full.data, shard, group=self.group, async_op=True)
            work.get_future().add_done_callback(arrived)
            self.gathering = work, shard

    def unshard(self) -> None:
        """Wait until ``full`` holds all parameters."""
        self.gather()
        self._wait()

    def reshard(self) -> None:
        """Free the memory of ``full``. The tensor stays, and its views are valid again after the next gather."""
        self._wait()  # if it was gathered ahead, and then not used
        self.storage.resize_(0)

    def _wait(self) -> None:
        if self.gathering is not None:
            self.gathering[0].wait()
            self.gathering = None

    # ---- gradients: accumulate, average -----------------------------------------------------------------------

    def zero_gradient(self) -> Tensor:
        return torch.zeros_like(self.full)

    @torch.no_grad()
    def accumulate(self, i: int, gradient: Tensor) -> None:
        """Add a gradient of the i-th parameter. It is divided by the number of ranks before the ranks are summed
        up, because the sum of fp16 gradients might overflow."""
        if self.gradient is None:
            self.gradient = self.zero_gradient()
        self.view(self.gradient, i).add_(gradient, alpha=1 / (self.ranks * self.copies))
        self.reached.add(i)

    @torch.no_grad()
    def average(self, gradient: Tensor, mean: Tensor | None = None) -> Generator[None, None, Tensor]:
        """Sum this rank's shard of ``gradient`` over the ranks: (p * shard_size,) -> (shard_size,).

        A generator: it yields while a collective is under way, so that the caller can go on with backward. Its span
        in a timeline ends where the caller waits, because Gloo does not report the end of a reduce-scatter.
        """
        mean = gradient.new_empty(self.shard_size) if mean is None else mean
        self.reducing = [gradient, mean]
        arrived = trace.begin("communication", f"reduce-scatter {self.name}")
        work = reduce_scatter(mean, gradient, group=self.group, async_op=True)
        del gradient
        yield
        work.wait()
        arrived()
        self.reducing = []
        return mean

    # ---- between shards and full tensors ------------------------------------------------------------------------

    def extent(self, i: int) -> tuple[int, int]:
        """The i-th parameter owns ``shard[low:high]``; low == high where its elements are on other ranks."""
        return self.extents(i)[self.rank]

    def extents(self, i: int) -> list[tuple[int, int]]:
        """``extent`` on every rank."""
        low, high = self.starts[i : i + 2]
        firsts = [rank * self.shard_size for rank in range(self.ranks)]  # where in ``full`` a shard begins
        return [
            (min(max(low - first, 0), self.shard_size), min(max(high - first, 0), self.shard_size))
            for first in firsts
        ]

    def part(self, i: int, tensor: Tensor) -> Tensor:
        """Of something in the shape of the i-th parameter, the elements that this rank owns, as one dimension."""
        low, high = self.extent(i)
        start = low + self.rank * self.shard_size - self.starts[i]
        return tensor.flatten()[start : start + high - low] if high > low else tensor.flatten()[:0]

    def join(self, parts: Sequence[Tensor | None]) -> Tensor:
        """This rank's part of each parameter, laid end to end: (shard_size,); zeros where a part is None."""
        dtype = next((part.dtype for part in parts if part is not None), self.shard.dtype)
        joined = torch.zeros_like(self.shard, dtype=dtype)
        for i, part in enumerate(parts):
            if part is not None:
                joined[slice(*self.extent(i))] = part.detach().flatten()
        return joined

    @torch.no_grad()
    def collect(self, shard: Tensor) -> list[Tensor]:
        """All ranks' shards of something that belongs to the parameters, as one tensor for each parameter in the
        memory of the CPU. Every rank of the group must call it."""
        shard = shard.detach().to(self.full.device)
        flat = shard.new_empty(self.ranks * self.shard_size)
        all_gather(flat, shard, group=self.group)
        return [self.view(flat, i).to("cpu", copy=True) for i in range(len(self.shapes))]

    @torch.no_grad()
    def assign(self, tensors: Sequence[Tensor]) -> None:
        """New values for all parameters, of which this rank keeps its shard, and all where they are gathered."""
        for i, tensor in enumerate(tensors):
            self.shard[slice(*self.extent(i))] = self.part(i, tensor).to(self.shard.device)
            if self.storage.nbytes():
                self.view(self.full, i).copy_(tensor)


def storage_bytes(tensors: Iterable[object]) -> int:
    """Bytes of the memory behind tensors; shared memory counts once, and what is no tensor counts nothing."""
    storages = [t.untyped_storage() for t in tensors if isinstance(t, Tensor)]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())
