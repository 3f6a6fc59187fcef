"""A batch cut into microbatches, and a loss whose parts add up whatever their sizes.

The mean of the microbatches' means is not the mean of the batch where they have different numbers of tokens. So each
gives the sum of its losses, and all are divided by the number of tokens of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature

import torch.nn.functional as F
from torch import Tensor

from simulator.inputs.chunks import chunk_sizes

IGNORED = -100  # a target that does not count, as in nn.CrossEntropyLoss
Batch = Sequence[Tensor]  # what the model takes, then the targets
LossFunction = Callable[..., Tensor]  # (output, targets) -> the sum of the losses of all tokens


def cut_batch(batch: Batch, microbatches: int) -> list[Batch]:
    """The rows of a batch in microbatches as equal as possible, the longer ones first.

    Raises:
        ValueError: there are fewer rows than microbatches, or a tensor has others than the first.
    """
    rows = len(batch[0])
    if any(len(tensor) != rows for tensor in batch):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in batch)
        raise ValueError(
            f"each tensor of a batch must have as many rows as the first; the shapes are {shapes}"
        )
    if not 1 <= microbatches <= rows:
        raise ValueError(f"{rows} rows cannot be cut into {microbatches} microbatches")
    sizes = chunk_sizes(rows, microbatches)
    return list(zip(*(tensor.split(sizes) for tensor in batch), strict=True))


def sum_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum of the losses of all tokens whose target is not -100, in nats."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")


def count_tokens(microbatches: Sequence[Batch]) -> int:
    """How many targets are not -100. Targets of a floating-point type all count."""
    return max(1, sum(int((targets != IGNORED).sum()) for *_, targets in microbatches))


def checked_loss(loss_fn: LossFunction) -> LossFunction:
    """``loss_fn``, unless it says itself that it takes the mean: in an attribute, or as the default of an argument.

    Raises:
        ValueError: a mean would be divided by the number of tokens once more.
    """
    argument = signature(loss_fn).parameters.get("reduction")
    reduction = getattr(loss_fn, "reduction", "sum" if argument is None else argument.default)
    if reduction != "sum":
        raise ValueError(
            f'the loss must be a sum over the tokens: make it with reduction="sum", not {reduction!r}'
        )
    return loss_fn
