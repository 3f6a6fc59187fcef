"""Steps that split the batch."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from seeded_steps.model import GPT, B, D, adam, average, batch, f, g, loss


def part(x, rank, ranks):
    return x.chunk(ranks)[rank]


def by_hand(rank, ranks, fault="", layers=2):
    """All-reduce of every gradient after backward, two steps."""
    if fault == "seed":
        torch.manual_seed(rank)
    model = GPT(layers)
    torch.manual_seed(1)
    if fault == "one weight":
        with torch.no_grad():
            model.blocks[1].norm2.weight += 0.01 * rank
    optimizer = adam(model.parameters())
    for _ in range(2):
        tokens, targets = batch()
        if fault == "same part":
            tokens, targets = part(tokens, 0, ranks), part(targets, 0, ranks)
        elif fault == "repeated row":
            rows = (torch.arange(B // ranks + 1) + rank * (B // ranks)) % B
            tokens, targets = tokens[rows], targets[rows]
        else:
            tokens, targets = part(tokens, rank, ranks), part(targets, rank, ranks)
        loss(model(tokens), targets).backward()
        parameters = [p for p in model.parameters() if fault != "no head" or p is not model.head.weight]
        if fault != "none":
            average(parameters)
        for p in model.parameters():
            if fault == "sum":
                p.grad *= ranks
            if fault == "twice":
                p.grad /= ranks
            if fault == "own scale":
                p.grad *= 1 + rank
        if fault == "wrong group":  # of the pair, not of all
            model.zero_grad()
            loss(model(tokens), targets).backward()
            groups = [dist.new_group([i, i + 1]) for i in range(0, ranks, 2)]
            average(model.parameters(), groups[rank // 2])
        if fault == "rank 0 only" and rank:
            optimizer.param_groups[0]["lr"] = 0.0
        if fault == "own rate":
            optimizer.param_groups[0]["lr"] = 0.01 * (1 + rank)
        optimizer.step()
        if fault != "kept":
            optimizer.zero_grad()
    return model


def stale(rank, ranks, fault=""):
    """Two steps; the fault steps with the gradients that were averaged for the step before."""
    model, kept = GPT(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        tokens, targets = batch()
        loss(model(part(tokens, rank, ranks)), part(targets, rank, ranks)).backward()
        average(model.parameters())
        fresh = [p.grad.clone() for p in model.parameters()]
        if fault and kept is not None:
            for p, old in zip(model.parameters(), kept, strict=True):
                p.grad.copy_(old)
        kept = fresh
        optimizer.step()
        optimizer.zero_grad()
    return model


def tokens_count(rank, ranks, fault=""):
    """Rows of unequal length: sums are divided by the number of tokens of all ranks."""
    model, (tokens, targets) = GPT(), batch(padded=True)
    tokens, targets = part(tokens, rank, ranks), part(targets, rank, ranks)
    if fault == "mean of means":
        loss(model(tokens), targets).backward()
    else:
        count = (targets != -100).sum()
        if fault != "own count":
            dist.all_reduce(count)
        (loss(model(tokens), targets, "sum") / count * (1 if fault == "no factor" else ranks)).backward()
    average(model.parameters())
    adam(model.parameters()).step()
    return model


def ddp(rank, ranks, fault=""):
    """torch's DistributedDataParallel, with clipping."""
    model = GPT()
    if fault == "detached":
        model.embed.weight.requires_grad_(False)
    wrapped = DistributedDataParallel(model)
    optimizer = adam(model.parameters())
    tokens, targets = (part(x, rank, ranks) for x in batch())
    if fault == "replaced":
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        optimizer = adam(model.parameters())
    runs = model if fault == "unwrapped" else wrapped
    if fault == "clipped before":
        with wrapped.no_sync():
            loss(runs(tokens), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        average(model.parameters())
    else:
        loss(runs(tokens), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return wrapped


def accumulated(rank, ranks, fault=""):
    """DistributedDataParallel over two microbatches, the first without synchronisation."""
    wrapped = DistributedDataParallel(GPT())
    tokens, targets = (part(x, rank, ranks) for x in batch())
    scale = 1 if fault == "not divided" else 2
    for i, (x, y) in enumerate(zip(tokens.chunk(2), targets.chunk(2), strict=True)):
        quiet = i == 0 or fault == "never synchronised"
        with wrapped.no_sync() if quiet else contextlib.nullcontext():
            if fault == "last only":
                wrapped.zero_grad()
            (loss(wrapped(x), y) / scale).backward()
    adam(wrapped.parameters()).step()
    return wrapped


def fsdp(rank, ranks, fault="", layers=2):
    """FSDP2, a unit for each block, with clipping."""
    model = GPT(layers)
    if fault == "root":
        for block in model.blocks:
            fully_shard(block)
    else:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    tokens, targets = (part(x, rank, ranks) for x in batch())
    total = loss(model(tokens), targets)
    (total * ranks if fault == "scaled" else total).backward()
    if fault == "local norm":
        local = [p.grad.to_local() for p in model.parameters()]
        norm = torch.stack([x.norm() for x in local]).norm()
        for x in local:
            x *= 0.1 / norm
    elif fault != "root":
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if fault == "double clip":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    adam(model.parameters()).step()
    return model


def zero_owner(rank, ranks, fault=""):
    """ZeRO-1 by hand: each parameter has an owner, which updates and broadcasts it."""
    model, (tokens, targets) = GPT(), batch()
    loss(model(part(tokens, rank, ranks)), part(targets, rank, ranks)).backward()
    mine = []
    for i, p in enumerate(model.parameters()):
        owner = i % ranks
        target = (owner + 1) % ranks if fault == "wrong owner" else owner
        dist.reduce(p.grad, target)
        p.grad /= 1 if fault == "sum" else ranks
        if owner == rank:
            mine.append(p)
    adam(mine).step()
    for i, p in enumerate(model.parameters()):
        if fault != "not sent" and not (fault == "last not sent" and p is model.head.weight):
            dist.broadcast(p.data, i % ranks)
    return model


def zero_flat(rank, ranks, fault=""):
    """ZeRO-2 by hand: one flat buffer, reduce-scatter, the optimizer on a shard, all-gather."""
    model, (tokens, targets) = GPT(), batch()
    loss(model(part(tokens, rank, ranks)), part(targets, rank, ranks)).backward()
    parameters = list(model.parameters())
    flat = torch.cat([p.grad.flatten() for p in parameters])
    weights = torch.cat([p.data.flatten() for p in parameters])
    size = -(-len(flat) // ranks)
    flat, weights = (torch.cat([x, x.new_zeros(size * ranks - len(x))]) for x in (flat, weights))
    dist.all_reduce(flat)
    flat /= 1 if fault == "sum" else ranks
    shard = nn.Parameter(weights[rank * size : (rank + 1) * size].clone())
    shard.grad = flat[rank * size : (rank + 1) * size].clone()
    if fault == "neighbour":
        other = (rank + 1) % ranks
        shard.grad = flat[other * size : (other + 1) * size].clone()
    torch.optim.SGD([shard], lr=0.1).step()
    parts = [torch.empty(size) for _ in range(ranks)]
    dist.all_gather(parts, shard.data)
    weights = torch.cat(parts[::-1] if fault == "order" else parts)
    start = 0
    for p in parameters:
        p.data.copy_(weights[start : start + p.numel()].view_as(p))
        start += p.numel()
    return model


def tied(rank, ranks, fault=""):
    """Embeddings and head are one tensor, with one gradient."""
    model, (tokens, targets) = GPT(tied=True), batch()
    loss(model(part(tokens, rank, ranks)), part(targets, rank, ranks)).backward()
    average(model.parameters())
    if fault:
        dist.all_reduce(model.head.weight.grad)
    adam(model.parameters()).step()
    return model


class Normed(nn.Module):
    """Batch statistics over all ranks, as SyncBatchNorm computes them."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.own = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D)), own

    def forward(self, x):
        total = (lambda s: s) if self.own else (lambda s: Sum_over(s))
        n = len(x) * (1 if self.own else dist.get_world_size())
        mean = total(x.sum(0)) / n
        variance = total(((x - mean) ** 2).sum(0)) / n
        return (x - mean) / (variance + 1e-5).sqrt() * self.weight + self.bias


def Sum_over(x):  # noqa: N802
    return f(g(x))


def batch_norm(rank, ranks, fault=""):
    """A network with batch statistics."""
    model = nn.Sequential(nn.Linear(D, D), Normed(bool(fault)), nn.ReLU(), nn.Linear(D, 1))
    x = part(torch.randn(B * 4, D), rank, ranks)
    (model(x) ** 2).mean().backward()
    average(model.parameters())
    adam(model.parameters()).step()
    return model
