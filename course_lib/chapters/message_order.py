"""Chapter 05's model in which one rank skips a layer: which layer each rank sends when, and what comes of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table
from course_lib.runtime import launch

RANKS, LAYERS, SKIPS, SKIPPED = 4, 4, 1, 2  # rank 1 skips layer 2


class Layers(nn.Module):
    """Layers of one size, each of which adds to its input; one of them may be skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(LAYERS))

    def forward(self, x: Tensor, skip: int | None) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = x if i == skip else x + layer(x)
        return x


def four_messages(rung: Any) -> Shown:
    """The layers in the order in which each rank sends them, and which of the averaged gradients are right.

    Args:
        rung: like ``course_lib.by_hand.ddp.Overlap``.
    """
    found = launch(on_a_rank, RANKS, args=(rung,), timeout=30, backend="gloo")
    sent = [[f"layer {layer}" for layer in order] for order, _ in found]
    rows = [
        [f"rank {rank} sends", *order, *["nothing"] * (LAYERS - len(order))]
        for rank, order in enumerate(sent)
    ]
    right = [all(fine[layer] for _, fine in found) for layer in range(LAYERS)]
    common = min(
        len(order) for order, _ in found
    )  # a message that a rank does not send never comes to the others
    said = ["right" if right[layer] else "wrong" for layer in found[0][0][:common]]
    rows.append(["that gradient on rank 0", *said, *["never comes"] * (LAYERS - common)])
    return table(["", "first", "second", "third", "fourth"], rows)


def on_a_rank(rung: Any) -> tuple[list[int], list[bool]]:
    """The layers that this rank sends, in its order, and of each layer whether its gradient is the mean of all ranks'.

    A rank that has skipped a layer sends zeros for it once its backward has ended.
    """
    torch.manual_seed(0)
    model, skip = Layers(), SKIPPED if dist.get_rank() == SKIPS else None
    x = torch.randn(8, 64)
    means = [_mean(w, loss=model(x, skip).square().mean()) for w in model.parameters()]
    ddp, order = rung(model, cap_mb=0.001), []
    for i, bucket in enumerate(ddp.buckets):
        bucket.start = partial(_note, order, LAYERS - 1 - i, bucket.start)
    model(x, skip).square().mean().backward()
    for bucket in ddp.buckets:
        for w in bucket.parameters:
            if w.grad is None:
                w.grad = torch.zeros_like(w)
                ddp.gradient_is_ready(bucket)
    for _ in range(_most(len(order)) - len(order)):
        dist.all_reduce(
            torch.zeros(64 * 64)
        )  # in place of messages of other ranks, so that nobody waits for ever
    for i in order:
        ddp.buckets[LAYERS - 1 - i].finish()
    grads = [w.grad for w in model.parameters()]
    return order, [g is not None and torch.allclose(g, m) for g, m in zip(grads, means, strict=True)]


def _mean(w: Tensor, loss: Tensor) -> Tensor:
    """The mean of all ranks' gradients, zeros where a rank has none: one message after another, in the same order."""
    (grad,) = torch.autograd.grad(loss, w, allow_unused=True)
    mean = torch.zeros_like(w) if grad is None else grad
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def _most(messages: int) -> int:
    """That any rank has sent; over a group of its own, where no message that still waits is taken for another."""
    most = torch.tensor(messages)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=dist.new_group())
    return int(most)


def _note(order: list[int], layer: int, start: Any) -> None:
    order.append(layer)
    start()
