"""A batch cut into microbatches, and a loss whose parts add up whatever their sizes.

The mean of the microbatches' means is not the mean of the batch where they have different numbers of tokens. So each
gives the sum of its losses, and all are divided by the number of tokens of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor

from simulator.inputs.chunks import chunk_sizes

Batch = Sequence[Tensor]  # what the model takes, then the targets
LossFunction = Callable[..., Tensor]  # (output, targets) -> the sum of the losses of all tokens


def cut_batch(batch: Batch, microbatches: int) -> list[Batch]:
    """The rows of a batch in microbatches as equal as possible, the longer ones first.

    Raises:
        ValueError: there are fewer rows than microbatches.
    """
    rows = len(batch[0])
    if not 1 <= microbatches <= rows:
        raise ValueError(f"{rows} rows cannot be cut into {microbatches} microbatches")
    sizes = chunk_sizes(rows, microbatches)
    return list(zip(*(tensor.split(sizes) for tensor in batch), strict=True))


def sum_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum of the losses of all tokens whose target is not -100, in nats."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")


def count_tokens(microbatches: Sequence[Batch]) -> int:
    """How many targets are not -100. Targets of a floating-point type all count."""
    return max(1, sum(int((targets != -100).sum()) for *_, targets in microbatches))


def checked_loss(loss_fn: LossFunction) -> LossFunction:
    """``loss_fn``, unless it says itself that it takes the mean.

    Raises:
        ValueError: a mean would be divided by the number of tokens once more.
    """
    if getattr(loss_fn, "reduction", "sum") != "sum":
        raise ValueError(
            f'the loss must be a sum over the tokens: make it with reduction="sum", not {loss_fn.reduction!r}'
        )
    return loss_fn
