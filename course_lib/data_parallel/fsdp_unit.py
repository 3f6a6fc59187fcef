"""What FSDP moves at a time: the parameters of one module (a unit) laid end to end, whole only while it computes.

Between uses each of F ranks (the sharding factor) keeps a 1/F-th of the flat buffer, its shard. ``gather``
brings the buffer to life, ``reshard`` lets it go, and ``reduction`` turns the gradient of the whole into the
averaged gradient of the shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.data_parallel.flat import all_gather, reduce_scatter, storage_bytes
from course_lib.runtime import trace


@dataclass(eq=False)
class Slot:
    """One parameter of a unit, in its two forms.

    Attributes:
        name: its first name in the model.
        owners: the modules that use it, each with its own name for it; several when it is tied.
        whole: in its shape, a view into the unit's buffer: what modules compute with. At first, the model's own.
        piece: (n,) of its elements, n >= 0, a view into the shard: what the optimizer updates.
        start: where in the flattened parameter the piece begins.
    """

    name: str
    owners: list[tuple[nn.Module, str]]
    whole: nn.Parameter
    piece: nn.Parameter | None = None
    start: int = 0


class FlatBuffer:
    """Parameters that come and go together.

    Args:
        name: what to call it in timelines.
        slots: of one dtype, all trainable or all frozen. In their owners, pieces take their place.
        shard_group: the F ranks that own a part each.
        replica_group: the ranks that hold the same part in other copies of the model; None: there is one copy.
        device: where it computes.
        dtype: in which it computes; the shard keeps the dtype of the parameters.
        offload: keep the shard, and what belongs to it, in the memory of the CPU.

    Attributes:
        shard: (part,) this rank's elements.
        full: (F * part,) all of them, then up to F - 1 zeros. Its memory comes and goes; the tensor stays.
        gradient: (F * part,) of this rank's batch alone, until it is reduced; in the shard's dtype.
    """

    def __init__(
        self,
        name: str,
        slots: list[Slot],
        shard_group: ProcessGroup,
        replica_group: ProcessGroup | None,
        device: torch.device,
        dtype: torch.dtype | None,
        offload: bool,
    ) -> None:
        self.name, self.slots, self.device = name, slots, device
        self.shard_group, self.replica_group = shard_group, replica_group
        self.trainable = slots[0].whole.requires_grad
        self.sizes = [slot.whole.numel() for slot in slots]
        self.part = -(-sum(self.sizes) // shard_group.size())  # rounded up

        flat = torch.zeros(self.part * shard_group.size(), dtype=slots[0].whole.dtype, device=device)
        for slot, view in zip(slots, self.cut(flat), strict=True):
            view.copy_(slot.whole.detach().flatten())
        for group in filter(None, (replica_group, shard_group)):  # all start as the mesh's first rank
            dist.broadcast(flat, group=group, group_src=0)
        begin = shard_group.rank() * self.part
        shard = flat[begin : begin + self.part]
        self.shard = shard.to("cpu", copy=True).pin_memory() if offload and flat.is_cuda else shard.clone()
        self.full = torch.empty_like(flat, dtype=dtype if flat.is_floating_point() else None)
        self.gathering: tuple[dist.Work, Tensor] | None = None
        self.gradient: Tensor | None = None
        self.on_the_way: list[Tensor] = []  # gradients that are being reduced
        self.reached: set[str] = set()  # parameters that backward has reached since the last reduction

        for slot, view in zip(slots, self.cut(self.full), strict=True):
            first = view.storage_offset() - begin  # counted from the beginning of the shard
            low, high = (min(max(edge, 0), self.part) for edge in (first, first + view.numel()))
            slot.start = low - first
            slot.piece = nn.Parameter(self.shard[low:high], requires_grad=self.trainable)
            slot.whole = nn.Parameter(view.view(slot.whole.shape), requires_grad=self.trainable)
        self.reshard()

    # ---- parameters ---------------------------------------------------------------------------------------

    @property
    def storage(self) -> torch.UntypedStorage:
        """Behind ``full``, its views, and all that autograd has saved of them."""
        return self.full.untyped_storage()

    def gather(self) -> None:
        """Start the all-gather, unless the unit is whole or on its way."""
        if self.storage.nbytes() == 0:
            self.storage.resize_(self.full.numel() * self.full.element_size())
            mine = self.shard.to(self.device, self.full.dtype, non_blocking=True)
            # Through .data: that ``full`` is filled again is not a change of what autograd has saved of it.
            arrived = trace.begin("communication", f"all-gather {self.name}")
            work = all_gather(self.full.data, mine, group=self.shard_group, async_op=True)
            work.get_future().add_done_callback(arrived)
            self.gathering = work, mine

    def unshard(self) -> None:
        """Wait until the unit is whole, and give the modules whole parameters."""
        self.gather()
        if self.gathering is not None:
            self.gathering[0].wait()
            self.gathering = None
            self._install("whole")

    def reshard(self) -> None:
        """Free the buffer, and give the modules pieces."""
        if self.gathering is not None:  # gathered ahead, and then not used
            self.gathering[0].wait()
            self.gathering = None
        self.storage.resize_(0)
        self._install("piece")

    def _install(self, form: str) -> None:
        for slot in self.slots:
            for module, attribute in slot.owners:
                module._parameters[attribute] = getattr(slot, form)

    # ---- gradients ----------------------------------------------------------------------------------------

    def cut(self, flat: Tensor) -> list[Tensor]:
        """The part of each parameter in a flat tensor, as views."""
        return list(flat[: sum(self.sizes)].split(self.sizes))

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Add the gradients that backward has left in the whole parameters to ``gradient``, and free them."""
        if self.gradient is None:
            self.gradient = torch.zeros_like(self.full, dtype=self.shard.dtype)
        for slot, view in zip(self.slots, self.cut(self.gradient), strict=True):
            if slot.whole.grad is not None:
                view += slot.whole.grad.flatten()
                slot.whole.grad = None
                self.reached.add(slot.name)

    @torch.no_grad()
    def reduction(self) -> Iterator[None]:
        """Average the gradient over all ranks. Yields while a collective is under way, so that the caller may
        compute: reduce-scatter among the ranks that share this copy, then all-reduce among the copies. Their spans
        end when they are waited for, as Gloo does not say when a reduce-scatter is over."""
        gradient, self.gradient = self.gradient, None
        reached, self.reached = self.reached, set()
        mine = gradient.new_empty(self.part)
        self.on_the_way = [gradient, mine]
        arrived = trace.begin("communication", f"reduce-scatter {self.name}")
        work = reduce_scatter(mine, gradient, group=self.shard_group, async_op=True)
        del gradient
        yield
        work.wait()
        arrived()
        self.on_the_way = [mine]
        ranks = self.shard_group.size()
        if self.replica_group is not None:
            ranks *= self.replica_group.size()
            arrived = trace.begin("communication", f"all-reduce {self.name}")
            work = dist.all_reduce(mine, group=self.replica_group, async_op=True)
            yield
            work.wait()
            arrived()
        mine = mine.div_(ranks).to(self.shard.device)
        self.on_the_way = []
        for slot in self.slots:
            grad = mine[slot.piece.storage_offset() :][: slot.piece.numel()]
            if slot.piece.grad is not None:
                slot.piece.grad += grad
            elif slot.name in reached or grad.any():  # what nobody has used stays without a gradient
                slot.piece.grad = grad

    # ---- what can be asked --------------------------------------------------------------------------------

    @torch.no_grad()
    def collect(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """Something of which every slot has a piece, whole and in the CPU's memory. All ranks call it."""
        mine = torch.cat([piece.detach().to(self.device) for piece in pieces])
        mine = nn.functional.pad(mine, (0, self.part - mine.numel()))
        flat = mine.new_empty(self.full.shape)
        all_gather(flat, mine, group=self.shard_group)
        whole = zip(self.slots, self.cut(flat), strict=True)
        return [values.view(slot.whole.shape).to("cpu", copy=True) for slot, values in whole]

    def memory(self) -> tuple[int, int]:
        """Bytes of parameters, and of gradients, alive now."""
        wholes, pieces = [s.whole.grad for s in self.slots], [s.piece.grad for s in self.slots]
        parameters = [self.full, self.shard, *(self.gathering or ())[1:]]
        return storage_bytes(parameters), storage_bytes([self.gradient, *self.on_the_way, *wholes, *pieces])


@dataclass(eq=False)
class Unit:
    """A module with its flat buffers: one, or several where its parameters differ in dtype or some are frozen."""

    name: str
    module: nn.Module
    flats: list[FlatBuffer]
    reshard_after_forward: bool

    def __post_init__(self) -> None:
        self.trainable = [slot for flat in self.flats if flat.trainable for slot in flat.slots]
        self.missing = len(self.trainable)  # parameters that backward has yet to reach
        self.due = False  # a forward awaits its backward
        self.end_span = lambda: None

    def gather(self) -> None:
        for flat in self.flats:
            flat.gather()

    def unshard(self) -> None:
        self.gather()
        for flat in self.flats:
            flat.unshard()

    def reshard(self) -> None:
        for flat in self.flats:
            flat.reshard()

    def forget(self) -> None:
        """Drop the gradients that a failed backward has left."""
        self.missing = len(self.trainable)
        for flat in self.flats:
            flat.gradient, flat.on_the_way, flat.reached = None, [], set()
            for slot in flat.slots:
                slot.whole.grad = None

    def begin_span(self, what: str) -> None:
        if self.name:  # the root encloses all others
            self.end_span = trace.begin("compute", f"{what} {self.name}")
