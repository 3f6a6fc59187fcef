"""A small GPT with names of its own, its batch, and the collectives with a gradient that parallel code is made of."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

B, T, V, D, HEADS = 8, 8, 32, 16, 4


class Mix(nn.Module):
    """Attention without weights; (B, T, 3 D/p) -> (B, T, D/p) for H/p heads."""

    def forward(self, qkv: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
        b, t, _ = qkv.shape
        q, k, v = (x.view(b, t, heads, -1).transpose(1, 2) for x in qkv.chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return out.transpose(1, 2).reshape(b, t, -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.mix, self.out = nn.Linear(D, 3 * D), Mix(), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mix(self.qkv(x), HEADS))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(D), Attention()
        self.norm2, self.mlp = nn.LayerNorm(D), MLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, layers: int = 2, tied: bool = False) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        x = self.embed(tokens) + self.place(torch.arange(T) if positions is None else positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(padded: bool = False) -> tuple[Tensor, Tensor]:
    """Tokens and the next ones, (B, T); the later rows have fewer that count when ``padded``."""
    tokens = torch.randint(V, (B, T + 1))
    targets = tokens[:, 1:].clone()
    if padded:
        for row in range(B):
            targets[row, T - row :] = -100
    return tokens[:, :-1], targets


def loss(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)


def adam(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def average(parameters: object, group: dist.ProcessGroup | None = None) -> None:
    """All-reduce every gradient to its mean."""
    for p in parameters:
        if p.grad is not None:
            dist.all_reduce(p.grad, group=group)
            p.grad /= dist.get_world_size(group)


class Sum(torch.autograd.Function):
    """All-reduce forward, backward, or both: Megatron's g, f, and what torch.distributed.nn does."""

    @staticmethod
    def forward(ctx, x, group, forward, backward):
        ctx.group, ctx.backward_too = group, backward
        x = x.clone()
        if forward:
            dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        if ctx.backward_too:
            dist.all_reduce(grad, group=ctx.group)
        return grad, None, None, None


class Gather(torch.autograd.Function):
    """All-gather along a dimension; backward sums the parts' gradients, or only takes its own."""

    @staticmethod
    def forward(ctx, x, dim, add):
        ctx.dim, ctx.add = dim, add
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        if ctx.add:
            dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size(), ctx.dim)[dist.get_rank()].contiguous(), None, None


class Scatter(torch.autograd.Function):
    """Sum over the ranks, each keeping its part (Megatron's g-bar): backward gathers the parts."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim, x = dim, x.clone()
        dist.all_reduce(x)
        return x.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()

    @staticmethod
    def backward(ctx, grad):
        parts = [torch.empty_like(grad) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, grad.contiguous())
        return torch.cat(parts, ctx.dim), None


def f(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return Sum.apply(x, group, False, True)


def g(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return Sum.apply(x, group, True, False)
