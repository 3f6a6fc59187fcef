"""Steps that split sequences, experts and layers."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from seeded_steps.data_parallel import part
from seeded_steps.model import GPT, HEADS, B, D, Gather, T, V, adam, average, batch, f, g, loss


class GatheredAttention(nn.Module):
    """All-gather of keys and values, as Llama 3's context parallelism does; queries stay."""

    def __init__(self, whole, order, fault):
        super().__init__()
        self.qkv, self.out, self.order, self.fault = whole.qkv, whole.out, order, fault

    def forward(self, x):
        ranks, rank = dist.get_world_size(), dist.get_rank()
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.fault == "own keys":
            where = self.order.chunk(ranks)[rank]
        else:
            k, v = (Gather.apply(t, 1, self.fault != "no sum of keys") for t in (k, v))
            where = self.order
        mine = self.order.chunk(ranks)[0 if self.fault == "mask" else rank]
        mask = mine[:, None] >= where[None] if self.fault != "all" else None
        b = len(x)
        q, k, v = (t.view(b, t.shape[1], HEADS, -1).transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(out.transpose(1, 2).reshape(b, -1, D))


def context(rank, ranks, fault="", zigzag=False):
    """Each rank has a part of every sequence."""
    model, (tokens, targets) = GPT(), batch()
    order = torch.arange(T)
    if zigzag:
        pieces = order.chunk(2 * ranks)
        order = torch.cat([torch.cat([pieces[r], pieces[2 * ranks - 1 - r]]) for r in range(ranks)])
    for i, block in enumerate(model.blocks):
        block.attention = GatheredAttention(block.attention, order, fault if i == 0 else "")
    mine = order.chunk(ranks)[rank]
    places = torch.arange(T // ranks) if fault == "places" else mine
    tokens, targets = tokens[:, mine], targets[:, mine]
    if fault == "shifted":  # each rank shifts its own part: the last token of each has no target
        targets = tokens.roll(-1, 1)
        targets[:, -1] = -100
    total = loss(model(tokens, places), targets, "sum") / (B * T)
    (total * ranks if fault == "times ranks" else total).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    if fault == "averaged too":
        for p in model.parameters():
            p.grad /= ranks
    adam(model.parameters()).step()
    return model


def zigzag(rank, ranks, fault=""):
    """Context parallel with early and late tokens on every rank."""
    return context(rank, ranks, fault, zigzag=True)


def _all_to_all(x, split, join):
    """(…) cut along ``split``, received parts joined along ``join``; its gradient goes the other way."""
    return AllToAll.apply(x, split, join)


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, split, join):
        ctx.dims = split, join
        parts = [p.contiguous() for p in x.chunk(dist.get_world_size(), split)]
        received = [torch.empty_like(p) for p in parts]
        _exchange(received, parts)
        return torch.cat(received, join)

    @staticmethod
    def backward(ctx, grad):
        split, join = ctx.dims
        return AllToAll.apply(grad, join, split), None, None


def _exchange(received, parts):
    whole = torch.stack(parts)
    out = torch.empty_like(whole)
    dist.all_to_all_single(out, whole)
    for r, o in zip(received, out, strict=True):
        r.copy_(o)


class UlyssesAttention(nn.Module):
    """Heads instead of tokens during attention."""

    def __init__(self, whole, fault):
        super().__init__()
        self.qkv, self.out, self.fault = whole.qkv, whole.out, fault

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, -1) for y in self.qkv(x).chunk(3, -1))
        q, k, v = (_all_to_all(y, 2, 1).transpose(1, 2) for y in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        if self.fault == "layout":  # a reshape with as many elements, in another order
            out = out.transpose(1, 2).reshape(out.shape)
        out = _all_to_all(out, 1, 2)
        if self.fault == "heads":
            out = out.flip(2)
        return self.out(out.reshape(b, t, D))


def ulysses(rank, ranks, fault=""):
    """All-to-all around attention."""
    model, (tokens, targets) = GPT(), batch()
    for i, block in enumerate(model.blocks):
        block.attention = UlyssesAttention(block.attention, fault if i == 1 else "")
    mine = torch.arange(T).chunk(ranks)[rank]
    (loss(model(tokens[:, mine], mine), targets[:, mine], "sum") / (B * T)).backward()
    group = [dist.new_group([r]) for r in range(ranks)][rank] if fault == "group" else None
    for p in model.parameters():
        dist.all_reduce(p.grad, group=group)
    adam(model.parameters()).step()
    return model


class Experts(nn.Module):
    """One expert a token, each rank with its share of them; every token is seen by all ranks (the batch is whole)."""

    def __init__(self, n):
        super().__init__()
        self.gate = nn.Linear(D, n, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D)) for _ in range(n)
        )
        self.first, self.last, self.enter, self.leave, self.fault = 0, n, lambda x: x, lambda x: x, ""

    def forward(self, x):
        rows = x.flatten(0, -2)
        scores = self.gate(rows).softmax(-1)
        best, which = scores.max(-1)
        inside, best = self.enter(rows), best if self.fault == "scores" else self.enter(best)
        out = torch.zeros_like(rows)
        for i in range(self.first, self.last):
            chosen = which == i
            if self.fault == "capacity":
                chosen = chosen & (chosen.cumsum(0) <= 4)
            if chosen.any():
                out = out.index_put((chosen,), self.experts[i](inside[chosen]) * best[chosen][:, None])
        return self.leave(out).view_as(x)


def experts(rank, ranks, fault=""):
    """Expert parallel: a rank computes the tokens of its own experts, and the outputs are summed."""
    model = nn.Sequential(nn.LayerNorm(D), Experts(4), nn.LayerNorm(D), nn.Linear(D, V))
    layer, (_, targets) = model[1], batch()
    layer.enter, layer.leave, layer.fault = f, g, fault
    layer.first, layer.last = 4 * rank // ranks, 4 * (rank + 1) // ranks
    if fault == "no f":
        layer.enter = lambda x: x
    x = torch.randn(B, T, D)
    loss(model(x), targets).backward()
    mine = [p for i in range(layer.first, layer.last) for p in layer.experts[i].parameters()]
    if fault == "times ranks":
        for p in mine:
            p.grad *= ranks
    shared = [p for n, p in model.named_parameters() if ".experts." not in n]
    adam([*mine, *shared]).step()
    return model


def pipeline(rank, ranks, fault=""):
    """Stages with send and receive, two microbatches; each rank builds the whole and runs its layers."""
    model, (tokens, targets) = GPT(2), batch()
    half = [[0, 1]] if ranks == 1 else [[0], [1]]
    if rank >= len(half):
        return model
    mine, last = half[rank], rank == len(half) - 1
    for x, y in zip(tokens.chunk(2), targets.chunk(2), strict=True):
        if rank == 0:
            h = model.embed(x) + model.place(torch.arange(T))
        else:
            h = torch.empty(B // 2, T, D)
            dist.recv(h, rank - 1)
            h.requires_grad_()
        given = h
        for i in mine:
            h = model.blocks[i](h)
        if last:
            total = loss(model.head(model.norm(h)), y)
            (total if fault == "not divided" else total / 2).backward()
            if rank:
                dist.send(given.grad * (0.5 if fault == "halved" else 1), rank - 1)
        else:
            dist.send(h.detach(), rank + 1)
            grad = torch.empty_like(h)
            dist.recv(grad, rank + 1)
            if fault == "transposed":
                grad = grad.flip(0)
            h.backward(grad)
    adam([p for p in model.parameters() if p.grad is not None]).step()
    return model


def lora(rank, ranks, fault=""):
    """Frozen weights, small ones that train, data parallel."""
    model = nn.Sequential(nn.Linear(D, D), Adapter(), nn.Linear(D, V))
    model[0].requires_grad_(False), model[2].requires_grad_(fault == "thawed")
    x, (_, targets) = torch.randn(B, T, D), batch()
    loss(model(part(x, rank, ranks)), part(targets, rank, ranks)).backward()
    if fault != "adapter left out":
        average(model.parameters())
    else:
        average(model[1].a.parameters())
    adam([p for p in model.parameters() if p.requires_grad]).step()
    return model


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(D, 4, bias=False), nn.Linear(4, D, bias=False)

    def forward(self, x):
        return x + self.b(self.a(x))


def hangs(rank, ranks, fault=""):
    """A rank that leaves a collective out."""
    model, (tokens, targets) = GPT(), batch()
    loss(model(part(tokens, rank, ranks)), part(targets, rank, ranks)).backward()
    for p in model.parameters():
        if not (fault and rank == 1 and p is model.head.weight):
            dist.all_reduce(p.grad)
            p.grad /= ranks
    adam(model.parameters()).step()
    return model
