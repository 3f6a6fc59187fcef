"""ZeRO (arXiv:1910.02054): data parallelism in which no rank keeps what another rank keeps already.

Under plain data parallelism p ranks keep the same optimizer states and compute the same update. But an all-reduce is
a reduce-scatter followed by an all-gather. ZeRO puts the update between them, where every rank has the part of the
averaged gradient that it needs for its part of the parameters. Psi is the number of parameters; what a rank sends in
a step is, up to the factor (p-1)/p,

    stage 1   optimizer states / p             reduce-scatter, update, all-gather         2 Psi
    stage 2   gradients / p, too               the same                                   2 Psi
    stage 3   parameters / p, too (zero3.py)   reduce-scatter, update, 2 x all-gather     3 Psi

Only for optimizers that update every element by itself, such as SGD, Adam and AdamW: a shard is a flat part of many
tensors, and has no rows or columns that Adafactor could look at. For Muon there is ``sharded_muon.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from course_lib.data_parallel.flat import all_gather
from course_lib.data_parallel.sharded_bucket import ShardedBucket
from course_lib.data_parallel.sharded_optimizer import ShardedOptimizer
from course_lib.runtime import trace


class ShardedUpdate(ShardedOptimizer):
    """Stage 1 the obvious way (arXiv:2004.13336): after backward, reduce-scatter, update and all-gather.

    Used like the optimizer in the loop of one device, where each rank has its own slice of the batch:

    >>> zero = Zero1(model, torch.optim.AdamW, lr=1e-3)                 # doctest: +SKIP
    >>> train(model, my_slices, zero, steps=5)                           # doctest: +SKIP

    Gradients are averaged over the ranks, each rank's loss being a mean over equal slices. A parameter that took no
    part has a gradient of zero, so momentum and weight decay go on, where one device would leave it out. ``step``
    uses the gradients up.

    Args:
        model: any module; it is changed in place, its parameters become views into flat buffers. All ranks start
            with the parameters and buffers of the group's first rank.
        optimizer_class: an elementwise optimizer; ``settings`` are its arguments (``lr=…``).
        parameters: what to train, as every optimizer takes it: parameters, or groups ``{"params": […], "lr": …}``.
            Default: the model's. Frozen ones are left alone.
        group: the ranks that share the work, such as ``mesh["dp"].get_group()``; None: all.
        bucket_cap_mb: megabytes (2**20 bytes) of parameters that are reduced together.
        max_norm: clip the gradient to this norm, taken over all parameters.

    Attributes:
        grad_norm: norm of the whole averaged gradient at the last step, before clipping.

    Raises:
        ValueError: nothing to train, or an optimizer that is not elementwise.
    """

    stage = 1

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update this rank's shards and send them to the other ranks; return what ``closure`` returns.

        Raises:
            ValueError: there is no gradient, or on any rank one that is not finite; all parameters and optimizer
                states are as before.
        """
        loss = self.loss_of(closure)
        self.average_gradients()
        if self.flats and not self.shards:
            raise ValueError("there is no gradient to step with: call backward on a loss first")
        self.clip()
        with trace.span("compute", "update"):
            self.optimizer.step()
        self.gather_parameters()
        self.zero_grad()
        return loss

    def average_gradients(self) -> None:
        """Each rank gets its shard of the mean: (p * shard_size,) -> (shard_size,), one buffer after the other."""
        for flat in self.flats:
            for p in flat.parameters:
                if p.grad is not None:
                    flat.take_gradient(p)
            for _ in flat.reduction(in_place=True):
                pass  # the reduce-scatter is under way, and there is nothing else to do

    def gather_parameters(self) -> None:
        """Every rank gets the updated shards of all ranks: (shard_size,) -> (p * shard_size,)."""
        with trace.span("communication", "all-gather parameters"):
            works = [all_gather(f.full, f.shard, group=f.group, async_op=True) for f in self.flats]
            for work in works:
                work.wait()


class Zero1(ShardedUpdate):
    """Stage 1 while backward runs: each rank keeps the optimizer states of its own shard, and no others.

    Parameters are dealt into buckets in the order in which backward completes them, and a bucket is reduced while
    backward computes the next. Arguments are those of ``ShardedUpdate``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: type[Optimizer],
        *,
        bucket_cap_mb: float = 8.0,
        **settings: Any,
    ) -> None:
        super().__init__(model, optimizer_class, bucket_cap_mb=bucket_cap_mb, **settings)
        self.synchronising = True
        for flat in self.flats:
            for p in flat.parameters if flat.trainable else []:
                p.register_post_accumulate_grad_hook(lambda p, flat=flat: self._gradient_ready(flat, p))

    def _gradient_ready(self, flat: ShardedBucket, parameter: nn.Parameter):
        """Autograd calls it once ``parameter.grad`` is complete."""
        flat.take_gradient(parameter)
        if not self.synchronising:
            return
        self._backward_begins()
        self.missing[flat].discard(parameter)
        # In this order on all ranks, even if gradients come in another: collectives have to match.
        while self.to_reduce and not self.missing[self.to_reduce[0]]:
            self._reduce(self.to_reduce.popleft())

    def _backward_begins(self) -> None:
        if not self.in_backward:
            self.in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)

    def _backward_ends(self) -> None:
        while self.to_reduce:  # buckets with a parameter that this backward did not reach
            self._reduce(self.to_reduce.popleft())
        while self.under_way:
            self._receive()
        self._expect_backward()

    def _expect_backward(self) -> None:
        self.in_backward = False
        self.to_reduce = deque(flat for flat in self.flats if flat.trainable)
        self.missing = {flat: set(flat.parameters) for flat in self.to_reduce}
        self.under_way: deque[Generator[None]] = deque()

    def _reduce(self, flat: ShardedBucket) -> None:
        """Start the reduce-scatter. The mean goes into the gradient's own buffer, which stays until the step."""
        self.under_way.append(flat.reduction(in_place=self.stage == 1))
        next(self.under_way[-1])

    def _receive(self) -> None:
        with trace.waiting():
            next(self.under_way.popleft(), None)

    def average_gradients(self) -> None:
        """Backward has done it, unless all backwards ran under ``no_sync``."""
        if any(flat.gradient is not None for flat in self.flats):
            self._backward_ends()

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self._expect_backward()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradient accumulation: gradients of the backwards inside stay on their rank, and the first backward after
        it reduces the sum. Without it the result is the same, and every backward sends. Stages 2 and 3 send in any
        case, because they do not keep the whole gradient."""
        self.synchronising = self.stage > 1
        try:
            yield
        finally:
            self.synchronising = True


class Zero2(Zero1):
    """Stage 2: the gradients, too. Each rank keeps its shard of a bucket's mean, and frees the bucket's buffer as
    soon as the mean has arrived. Smaller buckets take less memory and send more messages.
    """

    stage = 2

    def _reduce(self, flat: ShardedBucket) -> None:
        if self.under_way:
            self._receive()  # so at most two buckets are in memory: one is reduced, one fills
        super()._reduce(flat)
