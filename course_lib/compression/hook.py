"""What the methods of this folder have in common: each replaces the all-reduce of a DDP bucket by its own exchange.

DDP calls its ``comm_hook`` in backward, with a bucket whose gradients are complete. The bucket's buffer holds this
rank's part of the average: its own gradients divided by p, the number of ranks. So the average is the sum of all
ranks' parts. The hook sends what it wants, and at the end the buffer holds what the optimizer gets. PyTorch's
DistributedDataParallel has the same extension point (``register_comm_hook``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.runtime import trace
from simulator.inputs.checks import at_least


class GradBucket(Protocol):
    """What a hook reads of a bucket. ``views[i]`` is the part of the buffer for ``parameters[i]``, in its shape."""

    name: str
    parameters: list[Tensor]
    buffer: Tensor  # (n,)
    views: list[Tensor]
    group: dist.ProcessGroup | None


class Exchange:
    """Runs a generator that yields every message that it must wait for.

    The first message is sent at once, so it travels while backward goes on. The other ones are sent in ``wait()``,
    after backward. Buckets are waited for in one order on all ranks, so their messages cannot be mixed up.
    """

    def __init__(self, messages: Iterator[dist.Work], name: str) -> None:
        self.messages, self.name = messages, name
        self._advance()

    def wait(self) -> None:
        while self.message is not None:
            self.message.wait()
            self._advance()

    @torch.no_grad()
    def _advance(self) -> None:
        self.message = next(self.messages, None)  # the generator runs up to its next message
        if self.message is not None:
            end = trace.begin("communication", self.name)
            self.message.get_future().add_done_callback(end)


class CommHook:
    """The base of all hooks. A method defines ``exchange``, and may keep states for each bucket by its name.

    Args:
        warmup_steps: in so many first steps the gradients are averaged by an all-reduce, as in plain DDP.

    Raises:
        ValueError: ``warmup_steps`` is not a whole number of at least 0.
    """

    def __init__(self, warmup_steps: int = 0) -> None:
        at_least(0, warmup_steps=warmup_steps)
        self.warmup_steps = warmup_steps
        self.steps: Counter[str] = Counter()  # exchanges of each bucket so far

    def __call__(self, bucket: GradBucket) -> Exchange:
        warm = self.steps[bucket.name] >= self.warmup_steps
        self.steps[bucket.name] += 1
        return Exchange(self.exchange(bucket) if warm else all_reduce(bucket), bucket.name)

    def exchange(self, bucket: GradBucket) -> Iterator[dist.Work]:
        """Replace the buffer by the average, or by what stands for it; yield the messages to wait for."""
        raise NotImplementedError


class AllReduce(CommHook):
    """Compression switched off: the same gradients as plain DDP, bit for bit."""

    def exchange(self, bucket: GradBucket) -> Iterator[dist.Work]:
        return all_reduce(bucket)


def all_reduce(bucket: GradBucket) -> Iterator[dist.Work]:
    yield dist.all_reduce(bucket.buffer, group=bucket.group, async_op=True)


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors, of one dtype and device, laid end to end in a new tensor: (elements of all,)."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if tensors else torch.empty(0)


def unflatten(flat: Tensor, shaped: Sequence[Tensor]) -> list[Tensor]:
    """Cut what ``flatten`` laid end to end into views of the shapes of ``shaped``."""
    parts = flat.split([tensor.numel() for tensor in shaped]) if shaped else []
    return [part.view_as(tensor) for part, tensor in zip(parts, shaped, strict=True)]


@torch.no_grad()
def assign(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """Overwrite the tensors with what ``flatten`` laid end to end."""
    for tensor, values in zip(tensors, unflatten(flat, tensors), strict=True):
        tensor.copy_(values)
