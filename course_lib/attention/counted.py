"""Attention of one head through a ``FastMemory``: the loops of the papers, with every load and store counted.

Made for lengths of some hundred. Tensors are ``(length, size)``; tiles are computed in fp32. The results are those of
attention, and the counts are those of ``simulator.predict.attention_io``, to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.attention.fast_memory import FastMemory
from course_lib.attention.flash import Tiling

ALL = slice(None)


# ---- standard attention: one operator after the other, each through slow memory -----------------------------


class Kept(NamedTuple):
    """What standard attention keeps for backward, each ``(length, length)``: the weights, the same after dropout, and
    which of them dropout kept (None: no dropout)."""

    P: Tensor
    dropped: Tensor
    kept: Tensor | None


def standard_forward(
    memory: FastMemory, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, p: float = 0.0
) -> tuple[Tensor, Kept]:
    """O and what backward needs; ``p`` is the probability of dropout.

    Args:
        mask: ``(length, length)``, added to the scores, 0 or -inf; one for all heads, so it is not counted.
    """
    S = q.new_empty(len(q), len(k))
    operator(memory, "S = Q K^T", S, lambda Q, K: scaled(Q) @ K.float().mT, q, k)
    if mask is not None:
        operator(memory, "mask", S, lambda S: S.float() + mask, S)
    P = operator(memory, "P = softmax(S)", torch.empty_like(S), lambda S: S.float().softmax(-1), S)
    kept, dropped = None, P
    if p:
        kept = torch.rand(P.shape, device=P.device) >= p
        dropped = torch.empty_like(P)
        operator(memory, "dropout", dropped, lambda P: P.float() * kept / (1 - p), P)
        memory.store("dropout", torch.empty_like(kept), kept, ALL)
    O = operator(memory, "O = P V", torch.empty_like(q), lambda P, V: P.float() @ V.float(), dropped, v)
    return O, Kept(P, dropped, kept)


def standard_backward(
    memory: FastMemory, q: Tensor, k: Tensor, v: Tensor, saved: Kept, dO: Tensor, *, p: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """dQ, dK and dV."""
    P, dropped, kept = saved
    dV, dP, dS = torch.empty_like(v), torch.empty_like(P), torch.empty_like(P)
    operator(memory, "dV = P^T dO", dV, lambda P, dO: P.float().mT @ dO.float(), dropped, dO)
    operator(memory, "dP = dO V^T", dP, lambda dO, V: dO.float() @ V.float().mT, dO, v)
    if p:
        operator(memory, "dropout's backward", dP, lambda dP, kept: dP.float() * kept / (1 - p), dP, kept)
    operator(memory, "dS from P and dP", dS, softmax_backward, P, dP)
    scale = q.shape[-1] ** -0.5
    dQ = operator(
        memory, "dQ = dS K", torch.empty_like(q), lambda dS, K: dS.float() @ K.float() * scale, dS, k
    )
    dK = operator(memory, "dK = dS^T Q", torch.empty_like(k), lambda dS, Q: dS.float().mT @ scaled(Q), dS, q)
    return dQ, dK, dV


def operator(
    memory: FastMemory, name: str, out: Tensor, function: Callable[..., Tensor], *inputs: Tensor
) -> Tensor:
    """Load every input, compute, store the result."""
    with memory.tiles():
        memory.store(name, out, function(*(memory.load(name, x, ALL) for x in inputs)), ALL)
    return out


def softmax_backward(P: Tensor, dP: Tensor) -> Tensor:
    P, dP = P.float(), dP.float()
    return P * (dP - (P * dP).sum(-1, keepdim=True))


def scaled(Q: Tensor) -> Tensor:
    return Q.float() * Q.shape[-1] ** -0.5


# ---- FlashAttention (version 2): a block of queries stays, and blocks of keys pass by -----------------------


def flash_forward(
    memory: FastMemory, q: Tensor, k: Tensor, v: Tensor, tiling: Tiling
) -> tuple[Tensor, Tensor]:
    """O and the logsumexp L of every row."""
    O, L = torch.empty_like(q), row_numbers(q)
    for i in tiling.query_blocks():
        with memory.tiles():
            Q_i = memory.load("Q", q, i)
            O_i = memory.make(torch.zeros(Q_i.shape))
            m, l = memory.make(torch.full((len(Q_i),), -torch.inf)), memory.make(torch.zeros(len(Q_i)))
            for j in tiling.key_blocks(i):
                with memory.tiles():
                    K_j, V_j = memory.load("K", k, j), memory.load("V", v, j)
                    S = memory.make(tiling.scores(scaled(Q_i), K_j.float(), i, j, None))
                    larger = memory.make(torch.maximum(m, S.amax(-1)))
                    P = S.sub_(larger[:, None]).exp_()  # in the place of S
                    m.sub_(
                        larger
                    ).exp_()  # in the place of m: the factor that brings O_i and l to the larger maximum
                    O_i.mul_(m[:, None]).addmm_(P, V_j.float())
                    l.mul_(m).add_(P.sum(-1))
                    m.copy_(larger)
            memory.store("O", O, O_i / l[:, None], i)
            memory.store("L", L, m + l.log(), i)
    return O, L


def flash_backward(
    memory: FastMemory, q: Tensor, k: Tensor, v: Tensor, O: Tensor, L: Tensor, dO: Tensor, tiling: Tiling
) -> tuple[Tensor, Tensor, Tensor]:
    """dQ, dK and dV, in the three passes of the Triton kernels."""
    D, dQ, dK, dV = row_numbers(q), torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    for i in tiling.query_blocks():
        with memory.tiles():
            O_i, dO_i = memory.load("O", O, i), memory.load("dO", dO, i)
            memory.store("D", D, (O_i.float() * dO_i.float()).sum(-1), i)
    for j in key_blocks(tiling):
        with memory.tiles():
            K_j, V_j = memory.load("K", k, j), memory.load("V", v, j)
            dK_j, dV_j = memory.make(torch.zeros(K_j.shape)), memory.make(torch.zeros(V_j.shape))
            for i in query_blocks_that_meet(tiling, j):
                with memory.tiles():
                    Q_i, dO_i = memory.load("Q", q, i), memory.load("dO", dO, i)
                    L_i, D_i = memory.load("L", L, i), memory.load("D", D, i)
                    P, dS = weights_and_gradient(memory, tiling, i, j, Q_i, K_j, V_j, dO_i, L_i, D_i)
                    dV_j.addmm_(P.mT, dO_i.float())
                    dK_j.addmm_(dS.mT, scaled(Q_i))
            memory.store("dK", dK, dK_j, j)
            memory.store("dV", dV, dV_j, j)
    for i in tiling.query_blocks():
        with memory.tiles():
            Q_i, dO_i = memory.load("Q", q, i), memory.load("dO", dO, i)
            L_i, D_i = memory.load("L", L, i), memory.load("D", D, i)
            dQ_i = memory.make(torch.zeros(Q_i.shape))
            for j in tiling.key_blocks(i):
                with memory.tiles():
                    K_j, V_j = memory.load("K", k, j), memory.load("V", v, j)
                    _, dS = weights_and_gradient(memory, tiling, i, j, Q_i, K_j, V_j, dO_i, L_i, D_i)
                    dQ_i.addmm_(dS, K_j.float())
            memory.store("dQ", dQ, dQ_i * q.shape[-1] ** -0.5, i)
    return dQ, dK, dV


def weights_and_gradient(
    memory: FastMemory,
    tiling: Tiling,
    i: slice,
    j: slice,
    Q_i: Tensor,
    K_j: Tensor,
    V_j: Tensor,
    dO_i: Tensor,
    L_i: Tensor,
    D_i: Tensor,
) -> tuple[Tensor, Tensor]:
    """P and dS of one tile; dS takes the place of dP."""
    S = memory.make(tiling.scores(scaled(Q_i), K_j.float(), i, j, None))
    P = S.sub_(L_i[:, None]).exp_()
    dP = memory.make(dO_i.float() @ V_j.float().mT)
    return P, dP.sub_(D_i[:, None]).mul_(P)


def row_numbers(q: Tensor) -> Tensor:
    return torch.empty(len(q), dtype=torch.float32, device=q.device)


def key_blocks(tiling: Tiling) -> Iterator[slice]:
    """Every block of keys: those that the last queries meet, which see all of them."""
    yield from tiling.key_blocks(slice(0, tiling.rows))


def query_blocks_that_meet(tiling: Tiling, j: slice) -> Iterator[slice]:
    """The blocks of queries that see a key of block ``j``."""
    return (i for i in tiling.query_blocks() if j in tiling.key_blocks(i))
