"""Data parallelism: every rank holds the whole model, computes on its own slice of the batch, and averages gradients.

Three ways to average, from the simplest to that of PyTorch's DistributedDataParallel (Li et al.,
arXiv:2006.15704): one all-reduce for each parameter after backward; one all-reduce for all gradients after
backward; and gradients gathered into buckets, where a bucket is all-reduced as soon as its last gradient is
complete, while backward goes on. Psi is the number of bytes of the gradients, p the number of ranks; in all
three ways a rank sends 2 (p-1)/p Psi a step.

Models with parameters that a forward pass may leave out need ``ddp_unused_parameters.py``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.data_parallel.broadcast import broadcast_buffers, broadcast_state, broadcast_together
from course_lib.runtime import trace

MEBIBYTE = 2**20
Groups = Mapping[Tensor, ProcessGroup]
NO_GROUPS: Groups = MappingProxyType({})


class NaiveDDP(nn.Module):
    """One all-reduce for each parameter, after backward.

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
                if parameter.grad is None:  # unused on this rank, but another rank may have used it
                    parameter.grad = torch.zeros_like(parameter)
                with trace.span("communication", f"all-reduce {name}"):
                    dist.all_reduce(parameter.grad, group=self.group)
                    parameter.grad /= dist.get_world_size(self.group)


class FlatDDP(NaiveDDP):
    """One all-reduce for all gradients, laid end to end, after backward."""

    def __init__(
        self, module: nn.Module, group: ProcessGroup | None = None, groups: Groups = NO_GROUPS
    ) -> None:
        nn.Module.__init__(self)
        self.module, self.group, self.groups = module, group, groups
        start_equal(module, group, groups)

    def average_gradients(self) -> None:
        trained = [p for p in self.module.parameters() if p.requires_grad]
        for group, same in by_group(trained, self.group, self.groups).items():
            self._average(same, group)

    def _average(self, trained: list[Tensor], group: ProcessGroup | None) -> None:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        flat = torch.cat([g.flatten() for g in gradients])  # (elements of all gradients,)
        with trace.span("communication", "all-reduce all gradients"):
            dist.all_reduce(flat, group=group)
            flat /= dist.get_world_size(group)
        for p, average in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
            p.grad = average.view_as(p).to(p.dtype)


class DDP(nn.Module):
    """Gradients in buckets, all-reduced while backward runs; after ``backward()`` every ``.grad`` is the average.

    A loss may take several forward passes, and a step several backward passes. The gradients are views into the
    buckets, so the next backward pass overwrites them: clone a gradient that is to be kept. A wrapper that is
    dropped removes its hooks; keep it as long as gradients are to be averaged.

    Args:
        module: the model. Construction gives every rank the parameters and buffers of the group's first rank.
        bucket_cap_mb: a bucket is complete once it holds this many MiB (2**20 bytes) or more. None: 25, and 1
            for the first bucket, which can then be sent early in backward.
        group: the ranks that hold replicas; by default all.
        comm_hook: starts the exchange of a complete bucket. It returns an object whose ``wait()`` ends when the
            bucket's buffer holds the averages. By default an all-reduce.
        groups: for parameters of which only some of the ranks have a copy (experts), those ranks.

    Raises:
        ValueError: no parameter requires a gradient, or ``bucket_cap_mb`` is not positive.
        RuntimeError: in backward, when a parameter got no gradient.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_cap_mb: float | None = None,
        group: ProcessGroup | None = None,
        comm_hook: Callable[[Bucket], dist.Work] | None = None,
        groups: Groups = NO_GROUPS,
    ) -> None:
        super().__init__()
        trained = [p for p in module.parameters() if p.requires_grad]
        if not trained:
            raise ValueError("no parameter of this module requires a gradient: there is nothing to average")
        if bucket_cap_mb is not None and not bucket_cap_mb > 0:
            raise ValueError(f"bucket_cap_mb must be positive, not {bucket_cap_mb!r}")
        self.module, self.group = module, group
        self.synchronising = True  # False inside no_sync
        self._averages = False  # whether the gradients of the next backward pass will be averaged
        self._forward_pending = False  # a synchronised forward pass has had no backward pass yet
        self._expected = set(trained)  # the parameters for which a bucket waits
        start_equal(module, group, groups)
        first, others = (MEBIBYTE, 25 * MEBIBYTE) if bucket_cap_mb is None else [bucket_cap_mb * MEBIBYTE] * 2
        assigned = [
            (some, g)
            for g, same in by_group(trained, group, groups).items()
            for some in assign_buckets(same, others, first)
        ]
        if groups:  # those of which backward completes the last gradient first
            place = {p: i for i, p in enumerate(trained)}
            assigned.sort(key=lambda bucket: -min(place[p] for p in bucket[0]))
        hook = comm_hook or all_reduce_hook
        self.buckets = [Bucket(f"bucket {i}", some, g, hook) for i, (some, g) in enumerate(assigned)]
        self._wait_for_gradients()
        this = weakref.ref(self)  # the hooks belong to the parameters, and must not keep the wrapper alive
        hooks = [
            p.register_post_accumulate_grad_hook(lambda p, b=bucket: this()._gradient_is_ready(b, p))
            for bucket in self.buckets
            for p in bucket.parameters
        ]
        weakref.finalize(self, lambda: [hook.remove() for hook in hooks])

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if torch.is_grad_enabled():
            if self.synchronising:
                broadcast_buffers(self.module, self.group)
                self._wait_for_gradients()  # again, in case that the backward pass before this one broke off
                self._averages = self._forward_pending = True
            elif not self._forward_pending:  # if one is pending, a backward pass may belong to both
                self._averages = False
        return self.module(*inputs, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without communicating, for all microbatches of a step but the last.

        As in PyTorch the forward pass must run inside, too: it decides whether its backward pass averages. Where
        one backward pass belongs to several forward passes, it averages if one of them ran outside.
        """
        self.synchronising = False
        try:
            yield
        finally:
            self.synchronising = True

    def _wait_for_gradients(self) -> None:
        self._finish_queued = False
        for bucket in self.buckets:
            bucket.expect(self._expected)

    def _gradient_is_ready(self, bucket: Bucket, parameter: Tensor) -> None:
        """Autograd calls this in backward, when it has written ``parameter.grad``."""
        if not self._averages:
            return
        if not self._finish_queued:  # autograd calls _finish at the end of this backward pass
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            self._finish_queued = True
        bucket.waiting.discard(parameter)
        # In the same order on all ranks, because an all-reduce adds up whatever each rank sends next.
        for complete in self.buckets:
            if complete.waiting:
                break
            complete.start()

    def _finish(self) -> None:
        missing = [p for bucket in self.buckets for p in bucket.parameters if p in bucket.waiting]
        if missing:
            raise RuntimeError(
                f"{len(missing)} parameters, such as {self._name_of(missing[0])}, got no gradient in this backward "
                "pass; if that is meant, wrap the model with DDPWithUnusedParameters"
            )
        for bucket in self.buckets:
            bucket.finish()
        self._forward_pending = False
        self._wait_for_gradients()  # the backward pass of another forward pass may follow

    def _name_of(self, parameter: Tensor) -> str:
        return next(name for name, p in self.module.named_parameters() if p is parameter)


def by_group(
    parameters: Iterable[Tensor], group: ProcessGroup | None, groups: Groups
) -> dict[ProcessGroup | None, list[Tensor]]:
    """The parameters by the ranks that have a copy of them: ``group``, or what ``groups`` says."""
    found: dict[ProcessGroup | None, list[Tensor]] = {}
    for p in parameters:
        found.setdefault(groups.get(p, group), []).append(p)
    return found


def start_equal(module: nn.Module, group: ProcessGroup | None, groups: Groups) -> None:
    """As ``broadcast_state``; each parameter from the first rank that has a copy of it."""
    for ranks, tensors in by_group([*module.parameters(), *module.buffers()], group, groups).items():
        broadcast_together(tensors, ranks)


def all_reduce_hook(bucket: Bucket) -> dist.Work:
    """Start the sum of all ranks' buffers. They hold gradients divided by p, so the sum is the average."""
    end = trace.begin("communication", bucket.name)
    work = dist.all_reduce(bucket.buffer, group=bucket.group, async_op=True)
    work.get_future().add_done_callback(end)
    return work


class Bucket:
    """Parameters whose gradients lie side by side in one buffer, which is sent in one all-reduce."""

    def __init__(
        self,
        name: str,
        parameters: Sequence[Tensor],
        group: ProcessGroup | None,
        comm_hook: Callable[[Bucket], dist.Work],
    ) -> None:
        self.name, self.parameters, self.group, self.comm_hook = name, list(parameters), group, comm_hook
        sizes = [p.numel() for p in self.parameters]
        self.buffer = self.parameters[0].new_zeros(sum(sizes))  # (elements of all gradients,)
        slices = self.buffer.split(sizes)
        self.views = [s.view_as(p) for s, p in zip(slices, self.parameters, strict=True)]
        self.waiting: set[Tensor] = set()  # parameters whose gradients are still to come
        self.work: dist.Work | None = None

    def expect(self, parameters: set[Tensor]) -> None:
        """Wait for the gradients of ``parameters`` in the next backward pass."""
        self.finish_work()
        self.waiting = parameters.intersection(self.parameters)

    @torch.no_grad()
    def start(self) -> None:
        """Copy the gradients into the buffer and start its exchange, unless it has been started."""
        if self.work is not None:
            return
        share = 1 / dist.get_world_size(self.group)  # before the sum, because 16-bit sums might overflow
        for parameter, view in zip(self.parameters, self.views, strict=True):
            view.zero_() if parameter.grad is None else torch.mul(parameter.grad, share, out=view)
        self.work = self.comm_hook(self)

    def finish(self) -> None:
        """Wait for the averages, and make the views into the buffer, where they have arrived, the gradients."""
        self.finish_work()
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view

    def finish_work(self) -> None:
        if self.work is not None:
            self.work.wait()
            self.work = None


def assign_buckets(
    parameters: Sequence[Tensor], bucket_bytes: float, first_bucket_bytes: float | None = None
) -> list[list[Tensor]]:
    """Deal parameters into buckets, last ones first, because backward completes the last gradients first.

    A bucket is closed when it holds ``bucket_bytes`` or more (the first one of a dtype: ``first_bucket_bytes``).
    Each dtype and device has an open bucket of its own. Buckets are returned in the order in which they were
    closed, as PyTorch sends them. A tensor is dealt once, however often it is listed.
    """
    closed: list[list[Tensor]] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    limits: dict[tuple[torch.dtype, torch.device], float] = {}
    for parameter in reversed(list(dict.fromkeys(parameters))):
        kind = parameter.dtype, parameter.device
        bucket = open_buckets.setdefault(kind, [])
        bucket.append(parameter)
        limit = limits.setdefault(kind, bucket_bytes if first_bucket_bytes is None else first_bucket_bytes)
        if sum(p.nbytes for p in bucket) >= limit:
            closed.append(open_buckets.pop(kind))
            limits[kind] = bucket_bytes
    return closed + list(open_buckets.values())
