"""DDP by hand: every rank holds the whole model, computes on its own
samples, and averages its gradients with those of all other ranks.

Three rungs. One all-reduce for each parameter, after backward. One for
each bucket of parameters, after backward. And one for each bucket as
soon as its last gradient is there, while backward goes on, as PyTorch's
DistributedDataParallel does it (Li et al., arXiv:2006.15704).

Psi is the number of bytes of the gradients, p the number of ranks. On
every rung a rank sends 2 (p-1)/p Psi a step; the number of messages
differs, and when they are sent.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import get_total_norm

from course_lib.runtime import trace


class PerParameter:
    """First rung: one all-reduce for each parameter, after backward."""

    def __init__(self, model: nn.Module) -> None:
        for t in (*model.parameters(), *model.buffers()):
            dist.broadcast(t.detach(), 0)  # all ranks start alike
        trained = [w for w in model.parameters() if w.requires_grad]
        self.parameters = trained  # a tied parameter stands here once

    def average(self) -> None:
        """Call it between ``backward()`` and the optimizer's step."""
        for w in self.parameters:
            with trace.span("communication", "all-reduce"):
                dist.all_reduce(w.grad)
            w.grad /= dist.get_world_size()


class Buckets(PerParameter):
    """Second rung: gradients side by side, one all-reduce for each
    bucket. A message has a price of its own, so few large ones arrive
    sooner than many small ones."""

    def __init__(self, model: nn.Module, cap_mb: float = 25) -> None:
        super().__init__(model)
        self.buckets = [Bucket([])]
        # Last ones first: backward completes the last gradients first.
        for w in reversed(self.parameters):
            if self.buckets[-1].nbytes >= cap_mb * 2**20:
                self.buckets.append(Bucket([]))
            self.buckets[-1].parameters.append(w)

    def average(self) -> None:
        for bucket in self.buckets:
            bucket.start()
            bucket.finish()


class Bucket:
    """Parameters whose gradients travel in one message. They are divided
    before the sum, since sums in 16 bits might overflow."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.missing = 0  # gradients that backward still has to bring

    @property
    def nbytes(self) -> int:
        return sum(w.nbytes for w in self.parameters)

    def start(self) -> None:
        grads = [w.grad.flatten() for w in self.parameters]
        self.flat = torch.cat(grads) / dist.get_world_size()
        self.work = begin_all_reduce(self.flat)  # returns at once

    def finish(self) -> None:
        self.work.wait()
        means = self.flat.split([w.numel() for w in self.parameters])
        for w, mean in zip(self.parameters, means, strict=True):
            w.grad = mean.view_as(w)  # no copy: a view of the message


def begin_all_reduce(t: torch.Tensor):
    """In the background; a timeline draws it until the sum is there."""
    end = trace.begin("communication", "all-reduce")
    work = dist.all_reduce(t, async_op=True)
    work.get_future().add_done_callback(end)
    return work


class Overlap(Buckets):
    """Third rung: a bucket is sent while backward computes the next."""

    def __init__(self, model: nn.Module, cap_mb: float = 25) -> None:
        super().__init__(model, cap_mb)
        for bucket in self.buckets:
            for w in bucket.parameters:
                w.register_post_accumulate_grad_hook(
                    lambda _, b=bucket: self.gradient_is_ready(b)
                )
        self.expect_backward()

    def expect_backward(self) -> None:
        self.waiting = list(self.buckets)
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def gradient_is_ready(self, bucket: Bucket) -> None:
        """Autograd calls this when it has written a ``.grad``."""
        bucket.missing -= 1
        # A complete bucket waits for its turn, the same on all ranks.
        while self.waiting and self.waiting[0].missing == 0:
            self.waiting.pop(0).start()

    def average(self) -> None:
        """Only waits: the messages have been on their way for long."""
        if self.waiting:
            raise RuntimeError("a parameter got no gradient: freeze it")
        for bucket in self.buckets:
            bucket.finish()
        self.expect_backward()


def train(
    model, batches, make_optimizer, loss_fn, rung=Overlap, **options
):
    """Yields each step's loss, of this rank's samples, and the norm of
    the averaged gradient. Put your own loop in its place."""
    ddp = rung(model, **options)
    optimizer = make_optimizer(ddp.parameters)
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        ddp.average()
        norm = get_total_norm(w.grad for w in ddp.parameters)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), norm


RUNGS = {
    "per parameter": {"rung": PerParameter},
    "buckets": {"rung": Buckets, "cap_mb": 0.5},
    "overlap": {"rung": Overlap, "cap_mb": 0.5},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand import main

    main(train, RUNGS)
