"""Activation offload, recomputation's third choice: what a layer saves for its backward goes to the CPU's memory.

Autograd passes every tensor that it would save to ``pack``, and what that returns to ``unpack`` in backward (see
``recompute.py``). ``pack`` starts a copy to the CPU, and ``unpack`` hands the tensor out again. Bits are copied, and
nothing is computed twice, so gradients are the same bit for bit. The device holds what two layers save: the one that
computes, and the one whose copy is under way beside it: forward, of the layer before; backward, of the layer that comes
next (ZeRO-Infinity, arXiv:2104.07857; Megatron-LM and torchtune have it, too).

Where the model is on the CPU, "device" and "host" are two places in the same memory, and all else works alike.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from course_lib.models.anatomy import LAYERS
from course_lib.one_device.nested_tensors import tensors_in
from course_lib.one_device.recompute import outermost

LEAST = 1024  # bytes; what is smaller costs more to move than to keep


class Copies:
    """Copies in one direction, one after the other: on a GPU on a stream of their own, beside computation."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.bytes = 0  # so far

    def start(self, target: Tensor, source: Tensor) -> torch.cuda.Event | None:
        """After the work given to the current stream so far. Returns what to ``wait`` for."""
        self.bytes += source.nbytes
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        with (
            torch.cuda.stream(self.stream),
            _disable_current_modes(),
        ):  # a ledger of the device's memory looks away
            target.copy_(source, non_blocking=True)  # asynchronous from and to pinned memory
        return None if self.stream is None else self.stream.record_event()


def wait(copied: torch.cuda.Event | None) -> None:
    """Let the current stream, and not the CPU, wait."""
    if copied is not None:
        torch.cuda.current_stream().wait_event(copied)


class HostMemory:
    """The CPU's memory of one model's layers.

    Attributes:
        bytes, peak: held there now, and at most so far.
        out, back: the copies to the host, and to the device; ``out.bytes`` have been moved so far.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.out, self.back = device, Copies(device), Copies(device)
        self.bytes = self.peak = 0
        self.latest: dict[int, Region] = {}  # of each layer, by its place in the model
        self.leaving: list[Region] = []  # still on the device, too

    def hold(self, size: int) -> None:
        self.bytes += size
        self.peak = max(self.peak, self.bytes)

    def forward(self, place: int, module: nn.Module, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """The layer's ``function``, and when it is through, the layer before has left the device."""
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        stays = [t for t in tensors_in((args, kwargs)) if not t.requires_grad]  # masks, which all layers use
        region = Region(self, self.latest.get(place - 1), [*module.parameters(), *module.buffers(), *stays])
        self.latest[place] = region
        with saved_tensors_hooks(region.pack, region.unpack):
            result = function(*args, **kwargs)
        while self.leaving:
            self.leaving.pop().release()
        self.leaving.append(region)
        return result


class Slot:
    """One storage that a layer saves: on the host, and at times on the device.

    Attributes:
        users: saved tensors in it that backward has not asked for.
    """

    def __init__(self, storage: torch.UntypedStorage, memory: HostMemory) -> None:
        self.memory, self.here, self.users = memory, as_bytes(storage), 0
        self.size = storage.nbytes()
        with _disable_current_modes():
            self.host = torch.empty(self.size, dtype=torch.uint8, pin_memory=memory.device.type == "cuda")
        self.copied = memory.out.start(self.host, self.here)
        memory.hold(self.size)
        weakref.finalize(self, memory.hold, -self.size)  # with the graph, or as backward goes through it

    def fetch(self) -> None:
        """Start to bring it back, unless it is there."""
        if self.here is None:
            self.here = torch.empty(self.size, dtype=torch.uint8, device=self.memory.device)
            self.copied = self.memory.back.start(self.here, self.host)

    def take(self) -> torch.UntypedStorage:
        self.fetch()
        wait(self.copied)
        storage = self.here.untyped_storage()
        self.users -= 1
        if self.users <= 0:  # below 0: backward runs once more (``retain_graph``), and it comes once more
            self.here = None
        return storage

    def release(self) -> None:
        """Leave the device once the copy is there. What the current stream allocates from now on may take its place."""
        wait(self.copied)
        self.here = None


class Saved(NamedTuple):
    """What autograd keeps in place of a tensor."""

    slot: Slot
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


class Region:
    """One forward of one layer.

    Args:
        earlier: the forward of the layer before, whose backward comes next.
        stay: tensors that are not moved.
    """

    def __init__(self, memory: HostMemory, earlier: Region | None, stay: Iterable[Tensor]) -> None:
        self.memory, self.earlier, self.begun = memory, earlier, False
        self.stay = {id(storage): storage for storage in (t.untyped_storage() for t in stay)}
        self.slots: weakref.WeakValueDictionary[int, Slot] = weakref.WeakValueDictionary()

    def pack(self, tensor: Tensor) -> Tensor | Saved:
        # An operation's result would keep the operation alive, which keeps what is returned here: for ever.
        tensor = tensor.detach()
        if tensor.layout != torch.strided or tensor.device != self.memory.device:
            return tensor
        storage = tensor.untyped_storage()
        if id(storage) in self.stay or storage.nbytes() < LEAST or tensor.is_conj() or tensor.is_neg():
            return tensor
        slot = self.slots.get(id(storage))
        if slot is None:  # views of one storage are moved once
            slot = self.slots[id(storage)] = Slot(storage, self.memory)
        slot.users += 1
        return Saved(slot, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())

    def unpack(self, saved: Tensor | Saved) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if not self.begun:  # backward has come to this layer
            self.begun = True
            self.fetch()
            if self.earlier is not None:
                self.earlier.fetch()
        storage = saved.slot.take()
        empty = torch.empty(0, dtype=saved.dtype, device=self.memory.device)
        return empty.set_(storage, saved.offset, saved.shape, saved.stride)

    def fetch(self) -> None:
        for slot in list(self.slots.values()):
            if slot.users > 0:
                slot.fetch()

    def release(self) -> None:
        self.stay = {}
        for slot in list(self.slots.values()):
            slot.release()


def as_bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def apply_activation_offload(model: nn.Module) -> HostMemory:
    """Let every layer of ``model`` save in the CPU's memory. The model computes, and is saved and loaded, as before.

    Under autocast the 16-bit copies of a layer's weights are among what it saves, and are moved.

    Raises:
        ValueError: the model has no layers.
    """
    memory = HostMemory(next(model.parameters()).device)
    modules = dict(model.named_modules())
    for place, name in enumerate(outermost(model, LAYERS)):
        layer = modules[name]
        layer.forward = partial(memory.forward, place, layer, layer.forward)
    return memory
