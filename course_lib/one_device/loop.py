"""The loop that every technique of this course speeds up or shrinks, on one device: the oracle they are held to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

Batch = tuple[Tensor, ...]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all targets, in nats: ``(batch, classes)`` with ``(batch,)``, or both with ``seq`` between."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def train(
    model: nn.Module,
    batches: Iterable[Batch],
    optimizer: Optimizer,
    loss_fn: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    *,
    steps: int,
) -> list[float]:
    """Train in place; return each step's loss, as it was before that step.

    The last tensor of a batch holds the targets, the others are the model's arguments: ``(images, labels)``,
    ``(tokens, mask, labels)``. Raises ``ValueError`` when ``batches`` ends before ``steps``.
    """
    model.train()
    losses = []
    for *inputs, targets in islice(batches, steps):
        optimizer.zero_grad()
        loss = loss_fn(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if len(losses) < steps:
        raise ValueError(f"asked for {steps} steps, but there were only {len(losses)} batches.")
    return losses


@torch.no_grad()
def accuracy(model: nn.Module, *data: Tensor, batch_size: int = 256) -> float:
    """The share of samples, from 0 to 1, whose largest logit is the label. ``data``: inputs, then labels."""
    was_training = model.training
    model.eval()
    right = 0
    for *inputs, labels in zip(*(tensor.split(batch_size) for tensor in data), strict=True):
        right += (model(*inputs).argmax(-1) == labels).sum().item()
    model.train(was_training)
    return right / len(data[-1])
