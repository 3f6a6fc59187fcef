"""Steps that split matrices, by hand as Megatron does and with DTensor, on one axis or beside data parallelism."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from seeded_steps.data_parallel import part
from seeded_steps.model import GPT, HEADS, MLP, Gather, Scatter, Sum, adam, average, batch, f, g, loss

# The parameters that are cut; the others are whole on every rank.
CUT = ("qkv.weight", "qkv.bias", "out.weight", "up.weight", "up.bias", "down.weight")


class Column(nn.Module):
    """A part of a linear layer's outputs; of a packed matrix, a part of each of its pieces."""

    def __init__(self, whole, rank, ranks, pieces=1):
        super().__init__()
        cut = [
            torch.cat([x.chunk(ranks)[rank] for x in t.data.chunk(pieces)])
            for t in (whole.weight, whole.bias)
        ]
        self.weight, self.bias = map(nn.Parameter, cut)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class Row(nn.Module):
    """A part of a linear layer's inputs: an addend of its output."""

    def __init__(self, whole, rank, ranks):
        super().__init__()
        self.weight = nn.Parameter(whole.weight.data.chunk(ranks, 1)[rank].clone())
        self.bias = nn.Parameter(whole.bias.data.clone())

    def forward(self, x):
        return F.linear(x, self.weight)


class TPAttention(nn.Module):
    def __init__(self, whole, rank, ranks, enter, leave, fault):
        super().__init__()
        pieces = 1 if fault == "packed" else 3
        self.qkv, self.mix = Column(whole.qkv, rank, ranks, pieces), whole.mix
        self.out = Row(whole.out, rank, ranks)
        self.enter, self.leave, self.heads = enter, leave, HEADS // ranks

    def forward(self, x):
        return self.leave(self.out(self.mix(self.qkv(self.enter(x)), self.heads))) + self.out.bias


class TPMLP(nn.Module):
    def __init__(self, whole, rank, ranks, enter, leave, fault):
        super().__init__()
        place = 0 if fault == "same shard" else rank
        self.up = Column(whole.up, place, ranks)
        self.down = Row(whole.down, ranks - 1 - rank if fault == "other rows" else place, ranks)
        self.enter, self.leave, self.fault = enter, leave, fault

    def forward(self, x):
        y = self.down(F.gelu(self.up(self.enter(x))))
        if self.fault == "bias":
            return self.leave(y + self.down.bias)
        return self.leave(y) + self.down.bias


def _cut(model, rank, ranks, enter, leave, fault="", block=1, mlp_enter=None, mlp_leave=None):
    for i, b in enumerate(model.blocks):
        here = fault if i == block else ""
        b.attention = TPAttention(b.attention, rank, ranks, enter, leave, here)
        mine = (mlp_enter, mlp_leave) if i == block else (None, None)
        b.mlp = TPMLP(b.mlp, rank, ranks, mine[0] or enter, mine[1] or leave, here)


def megatron(rank, ranks, fault="", layers=2):
    """Column and row parallel attention and MLP, with f and g."""
    model = GPT(layers)
    enter = leave = None
    if fault == "no f":
        enter = lambda x: x  # noqa: E731
    if fault == "no g":
        leave = lambda x: x  # noqa: E731
    if fault == "g twice":
        leave = lambda x: g(g(x))  # noqa: E731
    if fault == "g sums backward":
        leave = lambda x: Sum.apply(x, None, True, True)  # noqa: E731
    if fault == "g averages":
        leave = lambda x: g(x) / ranks  # noqa: E731
    if fault == "no gradient":
        leave = lambda x: _plain_all_reduce(x)  # noqa: E731
    _cut(model, rank, ranks, f, g, fault, mlp_enter=enter, mlp_leave=leave)
    tokens, targets = batch()
    loss(model(tokens), targets).backward()
    if fault == "local norm":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    else:
        _clip(model, 0.01, fault == "counted twice")
    adam(model.parameters()).step()
    return model


def _plain_all_reduce(x):
    x = x.detach().clone()
    dist.all_reduce(x)
    return x


def _clip(model, most, every):
    """By the norm of the whole: replicated parameters count once."""
    parts = {True: torch.zeros(()), False: torch.zeros(())}
    for name, p in ((n, p) for n, p in model.named_parameters() if p.grad is not None):
        parts[every or name.endswith(CUT)] += (p.grad**2).sum()
    dist.all_reduce(parts[True])
    norm = (parts[True] + parts[False]).sqrt()
    for p in (p for p in model.parameters() if p.grad is not None):
        p.grad *= most / norm


def sequence(rank, ranks, fault=""):
    """Megatron's sequence parallelism: norms on a part of the tokens, gathered before the products."""
    model = GPT()
    gather, scatter = lambda x: Gather.apply(x, 1, True), lambda x: Scatter.apply(x, 1)
    if fault == "gather without sum":
        gather = lambda x: Gather.apply(x, 1, False)  # noqa: E731
    _cut(model, rank, ranks, gather, scatter)
    tokens, targets = (x.chunk(ranks, 1)[rank] for x in batch())
    places = torch.arange(8).chunk(ranks)[0 if fault == "places" else rank]
    (loss(model(tokens, places), targets, "sum") / 64).backward()
    left_out = {"no norm sum": ("norm",), "no bias sum": ("down.bias",), "no final norm": ("norm.weight",)}
    for name, p in model.named_parameters():
        shared = not name.endswith(CUT)
        skipped = any(word in name for word in left_out.get(fault, ()))
        if fault == "no final norm":
            skipped = name == "norm.weight"
        if shared and not skipped:
            dist.all_reduce(p.grad)
    adam(model.parameters()).step()
    return model


class VocabHead(nn.Module):
    """A part of the vocabulary's columns."""

    def __init__(self, whole, rank, ranks):
        super().__init__()
        self.weight = nn.Parameter(whole.weight.data.chunk(ranks)[rank].clone())

    def forward(self, x):
        return F.linear(x, self.weight)


class VocabEmbedding(nn.Module):
    """A part of the vocabulary's rows; tokens of other ranks give zeros."""

    def __init__(self, whole, rank, ranks, masked=True):
        super().__init__()
        self.weight = nn.Parameter(whole.weight.data.chunk(ranks)[rank].clone())
        self.first, self.masked = rank * len(self.weight), masked

    def forward(self, tokens):
        here = (tokens >= self.first) & (tokens < self.first + len(self.weight))
        rows = F.embedding((tokens - self.first).clamp(0, len(self.weight) - 1), self.weight)
        return g(rows * here[..., None] if self.masked else rows)


def vocabulary(rank, ranks, fault=""):
    """The head and the embedding by parts of the vocabulary, cross entropy from the parts."""
    model, (tokens, targets) = GPT(), batch()
    model.embed = VocabEmbedding(model.embed, rank, ranks, fault != "not masked")
    model.head = VocabHead(model.head, rank, ranks)
    if fault != "no f":
        model.norm.register_forward_hook(lambda m, a, out: f(out))
    logits = model(tokens)
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    exponents = (logits - largest[..., None]).exp().sum(-1)
    exponents = exponents if fault == "own softmax" else g(exponents)
    first = rank * logits.shape[-1]
    here = (targets >= first) & (targets < first + logits.shape[-1])
    own = logits.gather(-1, (targets - first).clamp(0, logits.shape[-1] - 1)[..., None])[..., 0]
    target = g(own * here)
    (exponents.log() + largest - target).mean().backward()
    adam(model.parameters()).step()
    return model


def dtensor(rank, ranks, fault="", layers=2):
    """parallelize_module with torch's styles, sequence parallel between them."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    model = nn.Sequential(*[MLPBlock() for _ in range(layers)], nn.LayerNorm(16))
    x = torch.randn(8, 8, 16)
    for block in model[:-1]:
        parallelize_module(
            block,
            mesh,
            {
                "norm": SequenceParallel(),
                "mlp": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
                "mlp.up": ColwiseParallel(),
                "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
            },
        )
    x = x.chunk(ranks, 1)[rank].contiguous()
    y = model(x)
    (y**2).sum().backward()
    if fault != "plain norm":
        dist.all_reduce(model[-1].weight.grad)
        dist.all_reduce(model[-1].bias.grad)
    torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False).step()
    return model


class MLPBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(16), MLP()

    def forward(self, x):
        y = self.mlp(self.norm(x))
        return x + (y.to_local() if hasattr(y, "to_local") else y)


def dp_tp(rank, ranks, fault=""):
    """Two axes: data parallel outside, tensor parallel inside."""
    tp = 2 if ranks > 1 else 1
    inner = [dist.new_group(list(range(i, i + tp))) for i in range(0, ranks, tp)][rank // tp]
    outer = [dist.new_group(list(range(i, ranks, tp))) for i in range(tp)][rank % tp]
    model = GPT()
    summed = outer if fault == "wrong sum group" else inner
    _cut(model, rank % tp, tp, lambda x: f(x, inner), lambda x: g(x, inner), mlp_leave=lambda x: g(x, summed))
    tokens, targets = (part(x, rank // tp, ranks // tp) for x in batch())
    loss(model(tokens), targets).backward()
    if fault == "wrong group":
        average(model.parameters(), inner)
    elif fault == "world":
        average(model.parameters())
    elif fault != "no data axis":
        average(model.parameters(), outer)
    adam(model.parameters()).step()
    return model
