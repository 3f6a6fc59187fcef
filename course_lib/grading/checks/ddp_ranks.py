"""What the checks of chapter 05 run on the ranks: an answer, and beside it what one device would have computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.data_parallel.ddp import DDP
from course_lib.data_parallel.ddp import assign_buckets as deal
from course_lib.observe.ledgers.traffic import record_traffic

CHANNELS = 6  # of the images whose statistics are asked for


class Chain(nn.Module):
    """Six layers in two halves, which may be computed in either order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.left = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.right = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, crossed: bool) -> Tensor:
        halves = [self.left, self.right]
        if not crossed:  # one after the other
            for layer in [*self.left, *self.right]:
                x = torch.tanh(layer(x))
            return x
        out = []
        for half in halves if dist.get_rank() == 0 else halves[::-1]:
            y = x
            for layer in half:
                y = torch.tanh(layer(y))
            out.append(y * (1 if half is self.left else 2))
        return out[0] + out[1]


def overlap(answer: Callable, limit: int, crossed: bool) -> dict[str, Any]:
    """Two steps of the answer on this rank: gradients, and when the messages left."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = Chain()
    parameters = list(model.parameters())
    buckets = deal(parameters, limit)
    steps = []
    for step in range(2):
        inputs = torch.randn(5, 8, generator=torch.Generator().manual_seed(10 * step + rank))
        own = torch.autograd.grad(model(inputs, crossed).square().sum(), parameters)
        own = torch.cat([g.flatten() for g in own])
        averages = own.clone()
        dist.all_reduce(averages)
        model.zero_grad()
        before: list[int] = []  # messages that had left when each gradient came
        flags: list[bool] = []
        all_reduce = dist.all_reduce

        def watched(*given, _flags=flags, _all_reduce=all_reduce, **named):
            _flags.append(bool(given[3] if len(given) > 3 else named.get("async_op", False)))
            return _all_reduce(*given, **named)

        with record_traffic() as log, mock.patch.object(dist, "all_reduce", watched):
            hooks = [
                p.register_post_accumulate_grad_hook(lambda _, n=before, e=log.events: n.append(len(e)))
                for p in parameters
            ]
            answer(model(inputs, crossed).square().sum(), [list(bucket) for bucket in buckets])
        for hook in hooks:
            hook.remove()
        steps.append(
            {
                "gradients": torch.cat([p.grad.flatten() for p in parameters]),
                "averages": averages / ranks,
                "own": own,
                "messages": log.traffic.calls,
                "to_come": sum(left > 0 for left in before),
                "async": flags,
                "hooks left": sum(len(p._post_accumulate_grad_hooks or ()) for p in parameters),
            }
        )
    return {"rank": rank, "buckets": len(buckets), "steps": steps}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embedding, self.middle = nn.Embedding(9, 4), nn.Linear(4, 4)
        self.output = nn.Linear(4, 9, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(torch.tanh(self.middle(self.embedding(tokens))))  # (samples, 9)


def weighted(answer: Callable, sizes: Sequence[int]) -> dict[str, Any]:
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(11)
    inputs = [torch.randint(9, (n,), generator=generator) for n in sizes]
    targets = [torch.randint(9, (n,), generator=generator) for n in sizes]

    def gradients(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        model = Tied()
        F.cross_entropy(model(x), y).backward()
        return {name: p.grad for name, p in model.named_parameters()}

    apart = [gradients(x, y) for x, y in zip(inputs, targets, strict=True)]
    model = Tied()
    with record_traffic() as log:
        answer(model, inputs[rank], targets[rank])
    return {
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "whole": gradients(torch.cat(inputs), torch.cat(targets)),
        "plain": {name: sum(one[name] for one in apart) / len(sizes) for name in apart[0]},
        "own": apart[rank],
        "messages": log.traffic.calls,
        "tensors": len(list(model.parameters())),
    }


def accumulated(answer: Callable, microbatches: int) -> dict[str, Any]:
    """One accumulated step of the answer on this rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))

    def microbatch(seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(4, 6, generator=generator), torch.randint(3, (4,), generator=generator)

    data = [[microbatch(100 * r + m) for m in range(microbatches)] for r in range(ranks)]

    def gradient(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        loss = sum(F.cross_entropy(module(x), y) for x, y in parts) / len(parts)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])

    model = DDP(module)
    with record_traffic() as log:
        answer(model, list(data[rank]))
    return {
        "gradient": torch.cat([p.grad.flatten() for p in module.parameters()]),
        "whole": gradient([part for parts in data for part in parts]),
        "own": gradient(data[rank]),
        "last": gradient([parts[-1] for parts in data]),
        "traffic": log.traffic.of("all-reduce"),
        "sizes": [bucket.buffer.numel() for bucket in model.buckets],
    }


def statistics(answer: Callable, sizes: Sequence[int], offset: float) -> dict[str, Any]:
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(13)
    parts = [offset + r + torch.randn(n, CHANNELS, 4, 4, generator=generator) for r, n in enumerate(sizes)]
    with record_traffic() as log:
        answered = answer(parts[rank].clone())
    over = (0, 2, 3)
    exact = [part.double() for part in parts]
    means = torch.stack([part.mean(over) for part in exact])
    variances = torch.stack([part.var(over, correction=0) for part in exact])
    whole = torch.cat(exact)
    return {
        "answer": tuple(answered),
        "mean": whole.mean(over),
        "variance": whole.var(over, correction=0),
        "unbiased": whole.var(over),
        "mean of means": means.mean(0),
        "mean of variances": variances.mean(0),
        "own count": whole.sum(over) / (16 * sizes[rank]),
        "own": (means[rank], variances[rank]),
        "messages": log.traffic.calls,
        "sent": log.traffic.sent,
    }
