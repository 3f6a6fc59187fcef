"""The memory ledger, measured: what is alive on one rank at each moment of a step, by category.

Every operator passes PyTorch's dispatcher, where each new storage is noted; it counts until it is freed,
whoever made it. Sums are kept, so that a moment costs no look at all that is alive. ``saved.py`` tells what autograd
saves, and why.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, UntypedStorage, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdRef

from course_lib.one_device.nested_tensors import tensors_in
from simulator.ledgers.memory import MemoryBreakdown, MemoryHistory

PLAIN = (Tensor, nn.Parameter)  # most are: known without a look into them


class MemoryLog:
    """The bytes alive on this rank since recording began, one entry for each thing that was being done.

    Within an entry (``"forward blocks.0.mlp"``) the moment with the most bytes is kept.

    Attributes:
        allocator_peak: on a GPU, the most bytes that its allocator had given out; on the CPU None.
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self.held: list[MemoryBreakdown] = []
        self.labels: list[str] = []
        self.end = time.monotonic()
        self.allocator_peak: int | None = None

    def add(self, label: str, held: MemoryBreakdown) -> None:
        self.end = time.monotonic()
        if not self.labels or self.labels[-1] != label:
            self.times.append(self.end)
            self.held.append(held)
            self.labels.append(label)
        elif held.total > self.held[-1].total:
            self.held[-1] = held

    def at(self, label: str) -> MemoryBreakdown:
        """The first entry of that label.

        Raises:
            ValueError: there is none.
        """
        if label not in self.labels:
            raise ValueError(
                f"nothing was recorded as {label!r}; there is {', '.join(dict.fromkeys(self.labels))}"
            )
        return self.held[self.labels.index(label)]

    def history(self, rank: int = 0) -> MemoryHistory:
        """The type in which the simulator predicts, in seconds from the beginning: one drawing for both."""
        times = tuple(t - self.times[0] for t in self.times)
        return MemoryHistory(rank, times, tuple(self.held), tuple(self.labels), self.end - self.times[0])

    @property
    def peak(self) -> MemoryBreakdown:
        """The moment with the most bytes."""
        return max(self.held, key=lambda held: held.total)


@contextmanager
def record_memory(
    model: nn.Module,
    *optimizers: Optimizer,
    device: torch.device | str | None = None,
    snapshot: str | Path | None = None,
) -> Iterator[MemoryRecorder]:
    """Record what is alive while the body of the ``with`` runs, in forward, backward and update.

    ``parameters``: of the model. ``gradients``: ``.grad`` of the model's or the optimizers' parameters.
    ``optimizer_states``: the optimizers' state, and parameters of theirs that are not the model's (master
    weights). ``activations``: made in a forward, recomputed ones too, and inputs. ``buffers``: the model's buffers,
    and what lives for a moment (gradients of activations, gathered parameters, messages).

    It takes some microseconds for each operator, so do not time what is inside.

    Args:
        device: the device whose memory is recorded; by default that of the model's first parameter.
        snapshot: on a GPU, where to write the allocator's history for https://pytorch.org/memory_viz.

    Raises:
        ValueError: a snapshot is asked for of a device that is no GPU.
    """
    device = torch.empty(0, device=device or next(model.parameters()).device).device
    if snapshot and device.type != "cuda":
        raise ValueError(f"a snapshot is taken of a GPU's memory, not of {device}'s")
    recorder = MemoryRecorder(model, optimizers, device)
    if snapshot:
        torch.cuda.memory._record_memory_history()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        with recorder.hooks(), recorder:
            recorder.mark("start")
            yield recorder
            recorder.mark("end")
    finally:
        if device.type == "cuda":
            recorder.allocator_peak = torch.cuda.max_memory_allocated(device)
        if snapshot:
            torch.cuda.memory._dump_snapshot(str(snapshot))
            torch.cuda.memory._record_memory_history(enabled=None)


class MemoryRecorder(TorchDispatchMode, MemoryLog):
    """Listens to every operator, and knows which of the storages it has seen are still alive."""

    def __init__(self, model: nn.Module, optimizers: Iterable[Optimizer], device: torch.device) -> None:
        TorchDispatchMode.__init__(self)
        MemoryLog.__init__(self)
        self.model, self.optimizers, self.device = model, tuple(optimizers), device
        self.alive: dict[int, tuple[WeakIdRef, str, int]] = {}  # id -> (storage, category, bytes)
        self.sums = dict.fromkeys(MemoryBreakdown().as_dict(), 0)  # of the bytes, by category
        self.running: list[str] = []  # modules whose forward is under way, innermost last
        self.returning = ""  # the module whose backward began last
        theirs = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        self.trained = dict.fromkeys([*model.parameters(), *theirs])
        self.note(theirs, "optimizer_states")  # those that are the model's own are counted as such
        self.note(model.parameters(), "parameters")
        self.note(model.buffers(), "buffers")

    def note(self, tensors: Iterable[Any], category: str, *, only_new: bool = False) -> bool:
        """Count these storages in ``category``; returns whether one of them is new."""
        new = False
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                tensor = local(tensor)
                known = self.alive.get(id(storage := tensor.untyped_storage()))
                if known is None and tensor.device == self.device:
                    new = True
                    self.count(storage, category)
                elif known and (only_new or known[1] != category):  # an operator may have resized it
                    self.count(storage, known[1] if only_new else category)
        return new

    def count(self, storage: UntypedStorage, category: str) -> None:
        """Add it to a category's sum, with the bytes that it has now, until it is freed."""
        size, known = storage.nbytes(), self.alive.get(key := id(storage))
        if known is None or known[1:] != (category, size):
            reference = self.forget(key) if known else WeakIdRef(storage, lambda _: self.forget(key))
            self.alive[key] = reference, category, size
            self.sums[category] += size

    def forget(self, key: int) -> WeakIdRef:
        reference, category, size = self.alive.pop(key)
        self.sums[category] -= size
        return reference

    def mark(self, label: str) -> MemoryBreakdown:
        """Add what is alive now, under a label of your own."""
        # Gradients and optimizer states come into being like any other tensor: only now do they have an owner.
        self.note([p.grad for p in self.trained], "gradients")
        values = [value for o in self.optimizers for state in o.state.values() for value in state.values()]
        self.note(values, "optimizer_states")
        self.note(tree_leaves([v for v in values if not isinstance(v, Tensor)]), "optimizer_states")
        self.add(label, found := MemoryBreakdown(**self.sums))
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        forward = torch.is_grad_enabled() and "c10d" not in func.namespace  # messages live for a moment
        category = "activations" if forward else "buffers"
        self.note(tree_leaves((args, kwargs)), category, only_new=True)
        result = func(*args, **(kwargs or {}))
        if self.note(tree_leaves(result), category, only_new=True):
            self.mark_the_most(self.doing())
        return result

    def mark_the_most(self, label: str) -> None:
        """Mark, unless more was alive before under this label: to look who owns what takes long."""
        if self.labels[-1:] != [label] or sum(self.sums.values()) > self.held[-1].total:
            self.mark(label)
        self.end = time.monotonic()

    def doing(self) -> str:
        module = self.running[-1] if self.running else ""
        in_backward = torch._C._current_graph_task_id() != -1  # torch.utils.checkpoint asks so too
        if in_backward:
            return f"recompute {module}" if module else f"backward {self.returning}".rstrip()
        self.returning = ""  # the next backward begins with the loss
        return f"forward {module}".rstrip() if module or torch.is_grad_enabled() else "update"

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Follow which module is running, forward or backward, and a storage's ``resize_``, which is no operator."""
        resize = UntypedStorage.resize_

        def resized(storage: UntypedStorage, size: int) -> UntypedStorage:
            resize(storage, size)
            if id(storage) in self.alive:
                self.count(storage, self.alive[id(storage)][1])
            return storage

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(UntypedStorage, "resize_", resized))
            for name, module in self.model.named_modules():
                name = name or type(self.model).__name__
                before = module.register_forward_pre_hook(lambda *_, name=name: self.running.append(name))
                after = module.register_forward_hook(
                    lambda module, args, out, name=name: self.leave(name, out), always_call=True
                )
                stack.callback(before.remove)
                stack.callback(after.remove)
            yield

    def leave(self, name: str, output: Any) -> None:
        self.running.pop()
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda _: setattr(self, "returning", name))


def local(tensor: Any) -> Tensor:
    """The tensor that a rank holds of a DTensor, or of one that is on its way."""
    while type(tensor) not in PLAIN and is_traceable_wrapper_subclass(tensor):
        tensor = getattr(tensor, tensor.__tensor_flatten__()[0][0])
    return tensor
