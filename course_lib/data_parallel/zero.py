"""ZeRO (arXiv:1910.02054): data parallelism in which no rank keeps what another rank keeps already.

Every rank owns 1/p of the elements and updates only these. Psi is the number of parameters; what a rank sends in a
step is up to the factor (p-1)/p

    stage 1   optimizer states / p                      reduce-scatter, update, all-gather             2 Psi
    stage 2   gradients / p, too                        the same                                       2 Psi
    stage 3   parameters / p, too (zero3.py)            reduce-scatter, update, 2 x all-gather         3 Psi

Only for optimizers that update every element by itself, such as SGD, Adam and AdamW: a shard is a flat piece of
many tensors, and has no rows or columns that Adafactor or Muon could look at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from course_lib.data_parallel.broadcast import broadcast_buffers
from course_lib.data_parallel.checkpoint import full_state, load_full_state
from course_lib.data_parallel.ddp import assign_buckets
from course_lib.data_parallel.flat import FlatParameters, all_gather, reduce_scatter, storage_bytes
from course_lib.data_parallel.sharded_update import check_elementwise, param_groups
from course_lib.runtime import trace
from simulator.ledgers.memory import MemoryBreakdown


class Zero1:
    """Stage 1: every rank keeps the optimizer states of its own shard, and no others.

    Used like the optimizer in the loop of one device, where each rank has its own slice of the batch:

    >>> zero = Zero1(model, torch.optim.AdamW, lr=1e-3)                 # doctest: +SKIP
    >>> train(model, my_slices, zero, steps=5)                           # doctest: +SKIP

    Gradients are averaged over the ranks, each rank's loss being a mean over equal slices. Parameters are dealt
    into buckets in the order in which backward completes them, and a bucket leaves while backward computes the
    next. A parameter that took no part has a gradient of zero, so momentum and weight decay go on, where one
    device would leave it out. ``step`` uses the gradients up.

    Args:
        model: any module; it is changed in place, its parameters become views into flat buffers. All ranks start
            with the parameters and buffers of the group's first rank.
        optimizer_class: an elementwise optimizer; ``settings`` are its arguments (``lr=…``).
        parameters: what to train, as every optimizer takes it: parameters, or groups ``{"params": […], "lr": …}``.
            Default: the model's. Frozen ones are left alone.
        group: the ranks that share the work, such as ``mesh["dp"].get_group()``; None: all.
        bucket_mb: megabytes (2**20 bytes) a bucket may hold.
        max_norm: clip the gradient to this norm, taken over all parameters.

    Attributes:
        optimizer: the optimizer of this rank's shards; give this one to a learning rate schedule.
        grad_norm: norm of the whole averaged gradient at the last step, before clipping.

    Raises:
        ValueError: nothing to train, or an optimizer that is not elementwise.
    """

    stage = 1

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: type[Optimizer],
        *,
        parameters: Iterable[Any] | None = None,
        group: ProcessGroup | None = None,
        bucket_mb: float = 8.0,
        max_norm: float | None = None,
        **settings: Any,
    ) -> None:
        check_elementwise(optimizer_class)
        if not bucket_mb > 0:
            raise ValueError(f"bucket_mb must be positive, not {bucket_mb!r}")
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm must be positive, or None to clip nothing, not {max_norm!r}")
        self.model, self.group, self.bucket_mb, self.max_norm = model, group, bucket_mb, max_norm
        self.param_groups = param_groups(model.parameters() if parameters is None else parameters)
        order = {p: i for i, p in enumerate(model.parameters())}
        shards, self.flats = [], []
        for options in self.param_groups:
            unknown = [p for p in options["params"] if p not in order]
            if unknown:
                raise ValueError(f"a parameter of shape {tuple(unknown[0].shape)} is not one of the model's")
            flats = [FlatParameters(cut, name, group) for name, cut in self._cut(options["params"])]
            self.flats += flats
            shards.append({**options, "params": [flat.shard for flat in flats]})
        if not any(flat.shard.requires_grad for flat in self.flats):
            raise ValueError("there is nothing to train: no parameter requires a gradient")
        self.optimizer = optimizer_class(shards, **settings)
        broadcast_buffers(model, group)

        # Backward runs from the last parameter to the first, so the flats whose first comes last are done first.
        self.flats.sort(key=lambda flat: -min(order[p] for p in flat.parameters))
        for flat in self.flats:
            for p in flat.parameters:
                if p.requires_grad:
                    p.register_post_accumulate_grad_hook(lambda p, flat=flat: self._gradient_arrived(flat, p))
        self.grad_norm: Tensor | None = None
        self.synchronise = True
        self._forget_backward()

    def _cut(self, parameters: list[nn.Parameter]) -> Iterator[tuple[str, list[nn.Parameter]]]:
        """What of one group goes into each flat buffer: here DDP's buckets."""
        trained = [p for p in parameters if p.requires_grad]
        for i, bucket in enumerate(assign_buckets(trained, self.bucket_mb * 2**20)):
            yield f"bucket {len(self.flats) + i}", bucket

    # ---- backward: each bucket is reduced as soon as it is complete ---------------------------------------

    def _forget_backward(self) -> None:
        """Ready for the next backward."""
        self.backward_runs = False
        self.to_reduce = deque(flat for flat in self.flats if flat.shard.requires_grad)
        self.missing = {flat: set(flat.parameters) for flat in self.to_reduce}
        self.on_the_way: deque[tuple] = deque()

    def _gradient_arrived(self, flat: FlatParameters, parameter: nn.Parameter) -> None:
        """Called by autograd once ``parameter.grad`` is complete."""
        flat.take_gradient(parameter)
        if not self.synchronise:
            return
        self._backward_begins()
        self.missing[flat].discard(parameter)
        # In this order on all ranks, even if gradients come in another: collectives have to match.
        while self.to_reduce and not self.missing[self.to_reduce[0]]:
            self._reduce(self.to_reduce.popleft())

    def _backward_begins(self) -> None:
        if not self.backward_runs:
            self.backward_runs = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)

    def _backward_ends(self) -> None:
        while self.to_reduce:  # buckets with a parameter that this backward did not reach
            self._reduce(self.to_reduce.popleft())
        while self.on_the_way:
            self._receive()
        self._forget_backward()

    @torch.no_grad()
    def _reduce(self, flat: FlatParameters) -> None:
        gradient = flat.complete_gradient()
        mean = self._place_for_mean(flat)
        arrived = trace.begin("communication", f"reduce-scatter {flat.name}")
        work = reduce_scatter(mean, gradient, group=self.group, async_op=True)
        self.on_the_way.append((flat, mean, work, arrived))

    def _place_for_mean(self, flat: FlatParameters) -> Tensor:
        """Where this rank's part of the mean goes: into the gradient's buffer, which stays until the step."""
        return flat.mine(flat.gradient)

    def _receive(self) -> None:
        flat, flat.shard.grad, work, arrived = self.on_the_way.popleft()
        work.wait()
        arrived()
        flat.gradient = None  # the buffer goes too, unless the mean lies in it

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradient accumulation: gradients of the backwards inside stay on their rank, and the first backward
        after it reduces the sum. Without it the result is the same, and every backward sends. Stages 2 and 3
        send in any case: the whole gradient is what they do not keep."""
        self.synchronise = self.stage > 1
        try:
            yield
        finally:
            self.synchronise = True

    # ---- step: reduce-scatter is done; update, all-gather -------------------------------------------------

    @torch.no_grad()
    def step(self) -> None:
        """Update this rank's shards and hand them round.

        Raises:
            ValueError: there is no gradient, or on any rank one that is not finite; all parameters and
                optimizer states are as before.
        """
        if any(flat.gradient is not None for flat in self.flats):
            self._backward_ends()  # all backwards ran under no_sync
        shards = [flat.shard for flat in self.flats if flat.shard.grad is not None]
        if not shards:
            raise ValueError("there is no gradient to step with: call backward on a loss first")
        self._clip(shards)
        with trace.span("compute", "update"):
            self.optimizer.step()
        self._publish()
        self.zero_grad()

    def _clip(self, shards: list[nn.Parameter]) -> None:
        """Each element is in one shard of one rank, so the squares add up to those of the whole gradient."""
        square = torch.stack([shard.grad.norm().double() for shard in shards]).square().sum()
        dist.all_reduce(square, group=self.group)
        self.grad_norm = square.sqrt()
        if not self.grad_norm.isfinite():
            raise ValueError(
                f"the norm of the gradient is {self.grad_norm:g}, on some rank it is not finite, so no parameter was "
                "updated: look at the loss of this batch, or lower the learning rate"
            )
        if self.max_norm is not None:
            for shard in shards:
                shard.grad *= (self.max_norm / (self.grad_norm + 1e-6)).clamp(max=1)

    def _publish(self) -> None:
        """Everyone gets everyone's updated shards."""
        with trace.span("communication", "all-gather parameters"):
            works = [
                all_gather(f.full, f.shard.detach(), group=self.group, async_op=True) for f in self.flats
            ]
            for work in works:
                work.wait()

    def zero_grad(self) -> None:
        """Drop all gradients, and what a backward that failed has left behind."""
        for flat in self.flats:
            flat.gradient = flat.shard.grad = None
        self._forget_backward()

    # ---- what can be asked --------------------------------------------------------------------------------

    def memory(self) -> MemoryBreakdown:
        """Bytes of model states alive on this rank now; gradients are there between backward and ``step``."""
        flats, model = self.flats, list(self.model.parameters())
        parameters = [*model, *(f.full for f in flats), *(f.shard for f in flats)]
        gradients = [*(p.grad for p in model), *(f.gradient for f in flats), *(f.shard.grad for f in flats)]
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return MemoryBreakdown(storage_bytes(parameters), storage_bytes(gradients), storage_bytes(states))

    def state_dict(self) -> dict[str, Any]:
        """Model and optimizer as one device would have them, by name; see ``checkpoint``. All ranks call it."""
        groups = [group["params"] for group in self.param_groups]
        return full_state(self.model, self.flats, self.optimizer, groups)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` gave, at any stage on any number of ranks."""
        groups = [group["params"] for group in self.param_groups]
        load_full_state(self.model, self.flats, self.optimizer, groups, state)


class Zero2(Zero1):
    """Stage 2: the gradients, too. Of a bucket each rank keeps its own part of the mean, and gives the buffer
    back as soon as that has arrived. Smaller buckets: less memory, more messages.

    With several backwards before a step each one sends, because what would be waited with is no longer there.
    """

    stage = 2

    def _place_for_mean(self, flat: FlatParameters) -> Tensor:
        return torch.empty_like(flat.shard)

    def _reduce(self, flat: FlatParameters) -> None:
        if self.on_the_way:
            self._receive()  # so at most two buckets are in memory: one that leaves, one that fills
        super()._reduce(flat)
