"""Data parallelism: every rank holds the whole model, sees its own part of the batch, and averages gradients.

First the obvious way, then the way of PyTorch's DistributedDataParallel (Li et al., arXiv:2006.15704): gradients
are gathered into buckets, and a bucket is all-reduced as soon as its last gradient is ready, while backward
goes on below it. Psi is the number of bytes of the gradients, p the number of ranks; either way every rank
sends 2 (p-1)/p Psi a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.runtime import trace
from course_lib.training.nested_tensors import tensors_in


class NaiveDDP(nn.Module):
    """One all-reduce per parameter, after backward.

    Call ``average_gradients()`` between ``loss.backward()`` and ``optimizer.step()``.
    """

    def __init__(self, module: nn.Module, group: ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, group
        broadcast_state(module, group)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        broadcast_buffers(self.module, self.group)
        return self.module(*inputs, **named)

    def average_gradients(self) -> None:
        for name, parameter in self.module.named_parameters():  # a tied parameter appears once
            if parameter.requires_grad:
                if parameter.grad is None:  # unused here, but another rank may have used it
                    parameter.grad = torch.zeros_like(parameter)
                with trace.span("communication", f"all-reduce {name}"):
                    dist.all_reduce(parameter.grad, group=self.group)
                    parameter.grad /= dist.get_world_size(self.group)


class DDP(nn.Module):
    """Bucketed all-reduce, overlapped with backward by hooks; nothing to call, the gradients are just right.

    Args:
        module: the model, the same on every rank after construction (rank 0's parameters and buffers).
        bucket_mb: megabytes (2**20 bytes) a bucket may hold. Small buckets leave early and pay latency often.
        find_unused: also allow forward passes that leave some parameters out; their gradients are averaged as
            zeros. It costs a walk through the graph after each forward pass.
        group: the ranks that hold replicas; by default all.

    Raises:
        ValueError: a module without anything to train, or a bucket size that is not positive.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_mb: float = 25.0,
        find_unused: bool = False,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        trained = [p for p in module.parameters() if p.requires_grad]
        if not trained:
            raise ValueError("no parameter of this module requires a gradient: there is nothing to average")
        if not bucket_mb > 0:
            raise ValueError(f"bucket_mb must be positive, not {bucket_mb!r}")
        self.module, self.group, self.find_unused = module, group, find_unused
        self.synchronising = True  # as no_sync says; each forward pass decides for its own backward
        self._averages = self._finish_queued = False
        self._expected: set[Tensor] = set()  # by the forward passes since the last averaging
        self._arrived: set[Tensor] = set()  # in the backward passes since then, those under no_sync too
        self._averaged = True
        broadcast_state(module, group)
        self.buckets = [
            Bucket(f"bucket {i}", parameters, group)
            for i, parameters in enumerate(assign_buckets(trained, bucket_mb * 2**20))
        ]
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(bucket))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        communicates = self.synchronising and torch.is_grad_enabled()
        if communicates:
            broadcast_buffers(self.module, self.group)
        output = self.module(*inputs, **named)
        if torch.is_grad_enabled():
            self._averages = communicates
        if communicates:
            used = parameters_in_graph(output) if self.find_unused else set(self.module.parameters())
            # A loss may take several forward passes: their backward brings the gradients of all of them.
            self._expected = used if self._averaged else self._expected | used
            self._averaged = False
            self._expect()
        return output

    def _expect(self) -> None:
        self._finish_queued = False
        for bucket in self.buckets:
            bucket.expect(self._expected)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without communicating, for all microbatches of a step but the last.

        As in PyTorch it is the forward pass that must be inside: it decides what its backward does.
        """
        self.synchronising = False
        try:
            yield
        finally:
            self.synchronising = True

    def _hook(self, bucket: Bucket) -> Callable[[Tensor], None]:
        def gradient_is_ready(parameter: Tensor) -> None:
            self._arrived.add(parameter)
            if not self._averages:
                return
            if bucket.work is not None:
                raise self._too_late(parameter)
            if not self._finish_queued:  # autograd calls it once this backward pass is over
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
                self._finish_queued = True
            bucket.waiting.discard(parameter)
            self._start_ready()

        return gradient_is_ready

    def _start_ready(self) -> None:
        """Start every bucket that is complete, in the order that all ranks share.

        A bucket that overtook another on one rank only would meet the wrong bucket of its peers.
        """
        for bucket in self.buckets:
            if bucket.waiting:
                return
            bucket.start()

    def _finish(self) -> None:
        missing = {p for bucket in self.buckets for p in bucket.waiting}
        if missing and not self.find_unused:
            raise RuntimeError(
                f"{len(missing)} parameters, such as {self._name_of(missing)}, got no gradient in this backward "
                "pass; wrap the model with find_unused=True if that is meant"
            )
        for bucket in self.buckets:
            bucket.start()
        used_anywhere = self._used_anywhere() if self.find_unused else None
        for bucket in self.buckets:
            bucket.finish(used_anywhere)
        self._averaged = True
        self._arrived.clear()
        self._expect()  # the next backward may belong to this forward pass too, or to one before it

    def _too_late(self, parameter: Tensor) -> RuntimeError:
        return RuntimeError(
            f"the gradient of {self._name_of({parameter})} came after its bucket had left: let forward return "
            "tensors, or tuples, lists, dicts and dataclasses of them, and use no reentrant checkpoint"
        )

    def _name_of(self, parameters: set[Tensor]) -> str:
        return next(name for name, p in self.module.named_parameters() if p in parameters)

    def _used_anywhere(self) -> set[Tensor]:
        """One small all-reduce: a parameter that no rank used must keep its gradient, None included."""
        parameters = [p for bucket in self.buckets for p in bucket.parameters]
        flags = torch.tensor([p in self._arrived for p in parameters], dtype=torch.int32)
        flags = flags.to(parameters[0].device)
        dist.all_reduce(flags, group=self.group)
        return {p for p, ranks in zip(parameters, flags.tolist(), strict=True) if ranks}


class Bucket:
    """Some parameters whose gradients lie side by side in one buffer and travel in one all-reduce."""

    def __init__(self, name: str, parameters: Sequence[Tensor], group: ProcessGroup | None) -> None:
        self.name, self.parameters, self.group = name, list(parameters), group
        sizes = [p.numel() for p in self.parameters]
        self.buffer = self.parameters[0].new_zeros(sum(sizes))  # (elements of all gradients,)
        parts = self.buffer.split(sizes)
        self.views = [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]
        self.waiting: set[Tensor] = set()
        self.work: dist.Work | None = None

    def expect(self, used: set[Tensor]) -> None:
        """The next backward will bring the gradients of ``used``."""
        if self.work is not None:  # still on its way if the backward before this one broke off
            self.work.wait()
        self.waiting = used.intersection(self.parameters)
        self.work = None

    def start(self) -> None:
        """All gradients are here: send them on their way, and let backward go on."""
        if self.work is not None:
            return
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
        self.buffer /= dist.get_world_size(self.group)  # before the sum: in half precision it might overflow
        end = trace.begin("communication", self.name)
        self.work = dist.all_reduce(self.buffer, group=self.group, async_op=True)
        self.work.get_future().add_done_callback(end)

    def finish(self, used_anywhere: set[Tensor] | None) -> None:
        """Wait for the averages; from now on they are the gradients, read where they arrived."""
        self.work.wait()
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if used_anywhere is None or parameter in used_anywhere:
                parameter.grad = view


def assign_buckets(parameters: Sequence[Tensor], bucket_bytes: float) -> list[list[Tensor]]:
    """Deal parameters into buckets, last ones first: that is the order in which backward finishes gradients.

    A bucket holds parameters of one dtype and device, and is full when the next would exceed
    ``bucket_bytes``; a larger parameter has a bucket of its own. Each tensor is dealt once, however many
    names it has.
    """
    buckets: list[list[Tensor]] = []
    filled = 0.0
    for parameter in reversed(list(dict.fromkeys(parameters))):
        size = parameter.numel() * parameter.element_size()
        last = buckets[-1][-1] if buckets else None
        fits = last is not None and filled + size <= bucket_bytes
        if not fits or (last.dtype, last.device) != (parameter.dtype, parameter.device):
            buckets.append([])
            filled = 0
        buckets[-1].append(parameter)
        filled += size
    return buckets


def parameters_in_graph(output: Any) -> set[Tensor]:
    """The parameters whose gradients a backward pass from ``output`` will reach."""
    nodes = [t.grad_fn for t in tensors_in(output) if t.grad_fn is not None]
    seen, found = set(nodes), set()
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):  # AccumulateGrad: a leaf
            found.add(node.variable)
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                nodes.append(parent)
    return found


def broadcast_state(module: nn.Module, group: ProcessGroup | None = None) -> None:
    """Everyone starts from the first rank's parameters and buffers."""
    broadcast_together([*module.parameters(), *module.buffers()], group)


def broadcast_buffers(module: nn.Module, group: ProcessGroup | None = None) -> None:
    """Everyone continues with the first rank's buffers, such as BatchNorm's running statistics."""
    broadcast_together(list(module.buffers()), group)


@torch.no_grad()
def broadcast_together(tensors: Sequence[Tensor], group: ProcessGroup | None = None) -> None:
    """The first rank's values for all these tensors, in one message for each dtype."""
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        same = [t for t in tensors if t.dtype == dtype]
        flat = torch.cat([t.reshape(-1) for t in same])
        dist.broadcast(flat, group=group, group_src=0)
        for t, values in zip(same, flat.split([t.numel() for t in same]), strict=True):
            t.copy_(values.view_as(t))
