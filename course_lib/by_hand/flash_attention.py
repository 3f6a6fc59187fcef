"""FlashAttention by hand: exact attention without its scores in memory.

Three rungs. All scores S = Q K^T and their softmax P at once: n^2
numbers a head for n tokens. One tile of S after the other, joined by
the online softmax (Milakov and Gimelshein, arXiv:1805.02867); but
autograd still saves every tile. And a backward that computes each tile
of P again, P = exp(S - L), from L, the logarithm of each row's sum of
exp(S): then n numbers a head are kept (Dao et al., arXiv:2205.14135;
the order of the loops is that of arXiv:2307.08691).

On a GPU a tile stays in the fast memory of one processor, which is why
the same idea is also several times as fast there.

Shapes: ``rows`` are queries, ``...`` is batch and heads. Attention is
causal here: a token sees itself and those before it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

BLOCK = 16  # rows and keys of a tile


def all_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """First rung: (..., rows, size) of each -> (..., rows, size)."""
    whole = slice(0, q.shape[-2])
    S = scores(q, k, whole, whole)  # (..., rows, keys)
    return S.softmax(-1) @ v


def scores(q: Tensor, k: Tensor, i: slice, j: slice) -> Tensor:
    """A tile of S: rows i, keys j. Keys that come later are hidden, not
    by -inf: where a tile hides all of a row, -inf - -inf is NaN."""
    S = q[..., i, :] @ k[..., j, :].mT / q.shape[-1] ** 0.5
    row = torch.arange(i.start, i.stop, device=q.device)[:, None]
    key = torch.arange(j.start, j.stop, device=q.device)
    return S.masked_fill(key > row, torch.finfo(S.dtype).min)


def tiles(n: int, end: int | None = None) -> Iterator[slice]:
    """Blocks of n tokens, those that begin before ``end``."""
    for start in range(0, n if end is None else end, BLOCK):
        yield slice(start, min(start + BLOCK, n))


class Part(NamedTuple):
    """Attention over some of the keys, not yet divided by the sum."""

    m: Tensor  # (..., rows): the largest score
    l: Tensor  # (..., rows): the sum of exp(score - m)
    o: Tensor  # (..., rows, size): the sum of exp(score - m) v

    def output(self) -> Tensor:
        return self.o / self.l[..., None]

    def logsumexp(self) -> Tensor:
        return self.m + self.l.log()


def attend(S: Tensor, v: Tensor) -> Part:
    """Over the keys of one tile."""
    m = S.amax(-1)
    p = torch.exp(S - m[..., None])  # at most 1: no overflow
    return Part(m, p.sum(-1), p @ v)


def merge(a: Part, b: Part) -> Part:
    """The online softmax: a sum, once both have the same m."""
    m = torch.maximum(a.m, b.m)
    x, y = torch.exp(a.m - m), torch.exp(b.m - m)  # (..., rows)
    o = x[..., None] * a.o + y[..., None] * b.o
    return Part(m, x * a.l + y * b.l, o)


def forward_in_tiles(q: Tensor, k: Tensor, v: Tensor):
    """Second rung: O (..., rows, size) and L (..., rows)."""
    n, outputs, sums = q.shape[-2], [], []
    for i in tiles(n):
        part = None
        for j in tiles(n, i.stop):  # no tile above the diagonal
            new = attend(scores(q, k, i, j), v[..., j, :])
            part = new if part is None else merge(part, new)
        outputs.append(part.output())
        sums.append(part.logsumexp())
    return torch.cat(outputs, -2), torch.cat(sums, -1)


def in_tiles(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return forward_in_tiles(q, k, v)[0]


class FlashAttention(torch.autograd.Function):
    """Third rung: what is saved grows with n, not with its square."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        O, L = forward_in_tiles(q, k, v)
        ctx.save_for_backward(q, k, v, O, L)
        return O

    @staticmethod
    def backward(ctx: Any, dO: Tensor) -> tuple[Tensor, ...]:
        """dX is the gradient of X."""
        q, k, v, O, L = ctx.saved_tensors
        n, scale = q.shape[-2], q.shape[-1] ** -0.5
        D = (dO * O).sum(-1, keepdim=True)  # each row's sum of P dP
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        for i in tiles(n):
            for j in tiles(n, i.stop):
                S = scores(q, k, i, j)
                P = torch.exp(S - L[..., i, None])
                dP = dO[..., i, :] @ v[..., j, :].mT
                dS = scale * P * (dP - D[..., i, :])
                dv[..., j, :] += P.mT @ dO[..., i, :]
                dq[..., i, :] += dS @ k[..., j, :]
                dk[..., j, :] += dS.mT @ q[..., i, :]
        return dq, dk, dv


class Core(nn.Module):
    """A model's attention between its linear layers."""

    def __init__(self, attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attention(q, k, v)  # (batch, heads, rows, size)


def train(
    model,
    batches,
    make_optimizer,
    loss_fn,
    attention=FlashAttention.apply,
):
    """Yields each step's loss and gradient norm."""
    for block in model.blocks:
        block.attention.core = Core(attention)
    parameters = list(model.parameters())
    optimizer = make_optimizer(parameters)
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        norm = get_total_norm([w.grad for w in parameters])
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), norm


RUNGS = {
    "all scores": {"attention": all_scores},
    "tiles": {"attention": in_tiles},
    "recomputed": {"attention": FlashAttention.apply},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand import main

    plans = dict.fromkeys(RUNGS, "unfused") | {"recomputed": "flash"}
    main(train, RUNGS, most=1, attention=plans)
