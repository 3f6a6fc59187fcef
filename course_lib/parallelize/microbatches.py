"""The microbatches of one step, forward and backward: one after the other, or through a pipeline.

Both are called with this rank's inputs, its targets, and ``count``, by which the sum of the losses is divided. Both
return the sum of the losses, undivided; zero where a rank has computed none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.parallelize.data_parallel import Replicated
from simulator.inputs.chunks import chunk_sizes

LossFn = Callable[[Tensor, Tensor], Tensor]


class Accumulation:
    """Without a pipeline: gradients add up, and data parallelism sends them beside the last backward.

    Args:
        loss_fn: the sum over the targets.
        computes_loss: False on all tensor-parallel ranks but the first: they compute the same loss once more.
    """

    def __init__(self, data: Replicated, loss_fn: LossFn, microbatches: int, computes_loss: bool) -> None:
        self.data, self.loss_fn, self.microbatches = data, loss_fn, microbatches
        self.computes_loss = computes_loss

    def __call__(self, inputs: Sequence[Tensor], targets: Tensor, count: float) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=targets.device)
        for i, (*own_inputs, own_targets) in enumerate(cut((*inputs, targets), self.microbatches)):
            with self.data.microbatch(last=i == self.microbatches - 1):
                loss = self.loss_fn(self.data.called(*own_inputs), own_targets)
                (loss / count).backward()
            total += loss.detach()
        return total * self.computes_loss


def cut(batch: Sequence[Tensor], microbatches: int) -> Iterator[tuple[Tensor, ...]]:
    """A batch in microbatches along the first dimension, the longer ones first."""
    sequences = len(batch[-1])
    if sequences < microbatches:
        raise ValueError(f"{sequences} sequences cannot be cut into the plan's {microbatches} microbatches")
    sizes = chunk_sizes(sequences, microbatches)
    return zip(*(tensor.split(sizes) for tensor in batch), strict=True)


def sum_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """In nats, over all targets but those of -100, computed in at least fp32."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")
