"""Exercise 09.2: the loss of a vocabulary that is cut over the ranks, right and with each likely mistake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.observe.ledgers.traffic import record_traffic

IGNORED = -100


def scored(
    answer: Callable[[Tensor, Tensor, int], Any], logits: Tensor, targets: Tensor, sizes: Sequence[int]
) -> dict[str, Any]:
    """The answer on this rank's columns of the logits."""
    rank = dist.get_rank()
    first = sum(sizes[:rank])
    own = logits[:, first : first + sizes[rank]].clone()
    kept = own.clone()
    with record_traffic() as log:
        result = answer(own, targets.clone(), first)
    pair = isinstance(result, tuple | list) and len(result) == 2
    loss, gradient = result if pair else (type(result).__name__, None)
    if isinstance(loss, Tensor):
        loss = loss.detach().clone()
        loss = loss.reshape(()) if loss.numel() == 1 else loss
    return {
        "pair": pair,
        "loss": loss,
        "gradient": gradient.detach().clone() if isinstance(gradient, Tensor) else gradient,
        "kept": own.equal(kept),
        "calls": log.traffic.calls,
        "sent": log.traffic.sent,
    }


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over the targets that count; 0 where none does."""
    count = max(1, int((targets != IGNORED).sum()))
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum") / count


def gradient_of(logits: Tensor, targets: Tensor) -> Tensor:
    logits = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(logits, targets), logits)
    return gradient


Given = tuple[Tensor, Tensor, Sequence[int]]


REACHED = ("clamped", "one word more")


def _reached(targets: Tensor, sizes: Sequence[int], mistake: str) -> list[tuple[Tensor, Tensor]]:
    """For each rank: the column that it takes for the target's, and the tokens for which it counts that column."""
    reached, first = [], 0
    for size in sizes:
        counts = torch.ones_like(targets, dtype=torch.bool)
        if mistake == "one word more":
            counts = (targets >= first) & (targets <= first + size)
        reached.append(((targets - first).clamp(0, size - 1), counts))
        first += size
    return reached


def _losses(logits: Tensor, targets: Tensor, sizes: Sequence[int], mistake: str) -> list[Tensor]:
    """What each rank would return."""
    x, p = logits.double(), len(sizes)
    parts, kept = x.split(list(sizes), 1), targets != IGNORED
    largest = x.amax(1)
    own = torch.stack([part.amax(1) for part in parts])  # (ranks, tokens)
    owner = torch.arange(p).repeat_interleave(torch.tensor(list(sizes)))[targets.where(kept, 0)]
    of_target = x.gather(1, targets.where(kept, 0)[:, None])[:, 0]
    count = kept.sum()
    shifted = [(part - largest[:, None]).float() for part in parts]  # exp(-200) is 0 in 32 bits alone
    if mistake == "own sum":
        sums = [part.exp().sum(1).log() for part in shifted]
        return [(s - of_target + largest)[kept].sum() / count for s in sums]
    if mistake == "own largest again":
        total = sum((part - m[:, None]).exp().sum(1) for part, m in zip(parts, own, strict=True))
        return [(total.log() + m - of_target)[kept].sum() / count for m in own]
    if mistake == "own largest":
        total = sum((part - m[:, None]).exp().sum(1) for part, m in zip(parts, own, strict=True))
        each = total.log() - (of_target - own.gather(0, owner[None])[0])
    elif mistake == "no sums":
        sums = [part.exp().sum(1).log() for part in shifted]
        each = [s - (of_target - largest) * (owner == rank) for rank, s in enumerate(sums)]
        return [one[kept].sum() / count for one in each]
    elif mistake in REACHED:
        picked = sum(
            (part - largest[:, None]).gather(1, i[:, None])[:, 0] * counts
            for part, (i, counts) in zip(parts, _reached(targets, sizes, mistake), strict=True)
        )
        each = (x - largest[:, None]).exp().sum(1).log() - picked
    elif mistake == "no target":
        each = (x - largest[:, None]).exp().sum(1).log() + largest
    else:
        each = (x - largest[:, None]).exp().sum(1).log() + largest - of_target
        if mistake == "shifted once":
            each = each - largest
    total = each[kept].sum()
    result = total if mistake == "summed" else total / (len(targets) if mistake == "all tokens" else count)
    return [result] * p


LOSSES: dict[str, Callable[..., list[Tensor]]] = {
    "when each rank adds up over its own words only": partial(_losses, mistake="own sum"),
    "when neither the sum of exponentials nor the target's logit is added up over the ranks": (
        partial(_losses, mistake="no sums")
    ),
    "when each rank subtracts the largest of its own logits, and not the largest of all": (
        partial(_losses, mistake="own largest")
    ),
    "when each rank subtracts the largest of its own logits in the sum, and adds it again": (
        partial(_losses, mistake="own largest again")
    ),
    "when a rank that does not have the target adds another logit in its place": (
        partial(_losses, mistake="clamped")
    ),
    "when a rank takes the word after its last for one of its own": partial(_losses, mistake="one word more"),
    "when the target's logit is not subtracted": partial(_losses, mistake="no target"),
    "when the largest logit is subtracted in the sum, and not from the target's logit": (
        partial(_losses, mistake="shifted once")
    ),
    "when the losses are added up and not averaged": partial(_losses, mistake="summed"),
    "when the sum is divided by the number of all tokens, the ignored ones too": (
        partial(_losses, mistake="all tokens")
    ),
}


def _gradients(logits: Tensor, targets: Tensor, sizes: Sequence[int], mistake: str) -> list[Tensor]:
    x, kept = logits.double(), targets != IGNORED
    softmax = x.softmax(1)
    if mistake == "own softmax":
        softmax = torch.cat([part.softmax(1) for part in x.split(list(sizes), 1)], 1)
    one_hot = torch.zeros_like(x).scatter_(1, targets.where(kept, 0)[:, None], 1.0)
    if mistake in REACHED:
        reached = zip(_reached(targets, sizes, mistake), sizes, strict=True)
        one_hot = torch.cat(
            [F.one_hot(i, size).double() * counts[:, None] for (i, counts), size in reached], 1
        )
    gradient = softmax if mistake == "no target" else softmax - one_hot
    if mistake == "ignored kept":
        gradient = torch.where(kept[:, None], gradient, softmax)
    else:
        gradient = gradient * kept[:, None]
    count = {"summed": 1, "all tokens": len(targets)}.get(mistake, int(kept.sum()))
    return [part.contiguous() for part in (gradient / count).split(list(sizes), 1)]


GRADIENTS: dict[str, Callable[..., list[Tensor]]] = {
    "when the softmax is taken over the words of each rank alone": partial(_gradients, mistake="own softmax"),
    "when a rank that does not have the target subtracts 1 from another logit": (
        partial(_gradients, mistake="clamped")
    ),
    "when a rank takes the word after its last for one of its own": partial(
        _gradients, mistake="one word more"
    ),
    "when 1 is not subtracted at the target": partial(_gradients, mistake="no target"),
    "when ignored tokens have a gradient": partial(_gradients, mistake="ignored kept"),
    "when the gradient is that of the sum, and the loss is a mean": partial(_gradients, mistake="summed"),
    "when the gradient is divided by the number of all tokens, the ignored ones too": (
        partial(_gradients, mistake="all tokens")
    ),
}
