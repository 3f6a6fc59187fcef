"""FlashAttention (arXiv:2205.14135): exact attention, tile by tile, in memory that is linear in the length.

The scores S = Q K^T and their softmax P are never stored as a whole. Forward computes one tile of them after the other,
and joins the tiles by the rule of ``online_softmax``. It keeps O and, for each row, the logsumexp L of the scores. From
L backward computes every tile of P once more, P = exp(S - L), so P is not kept either. Loops are in the order of
FlashAttention-2 (arXiv:2307.08691): a block of queries meets all its blocks of keys.

Letters: Q, K, V and the output O; i a block of ``block_q`` queries (the paper's B_r), j a block of ``block_k`` keys
(B_c); dX is the gradient of X. Shapes in comments: ``batch``, ``kv_heads``, ``group`` (query heads that share one head
of keys and values), ``rows`` (queries), ``keys``, ``size`` (of one head).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from course_lib.attention.checks import broadcast_mask, check_blocks, check_heads, check_probability
from course_lib.attention.online_softmax import attend, merge, no_keys


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    block_q: int = 128,
    block_k: int = 128,
    return_logsumexp: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale Q K^T) V.

    Args:
        q: ``(batch, heads, rows, size)``.
        k, v: ``(batch, kv_heads, keys, size)``; ``kv_heads`` divides ``heads`` (grouped-query attention).
        mask: boolean, true where a query may look at a key; it broadcasts to ``(batch, heads, rows, keys)``, so one
            of padding is ``(batch, 1, 1, keys)``.
        causal: a query sees no later key. The last query stands beside the last key, as with a cache of keys and as
            in FlashAttention-2; ``is_causal`` of ``scaled_dot_product_attention`` puts the first beside the first.
        dropout_p: the probability to drop a weight; backward drops the same ones.
        scale: of the scores; None: 1 / sqrt(size).
        block_q, block_k: queries and keys of a tile; they need not divide the lengths.
        return_logsumexp: also return L ``(batch, heads, rows)``, in at least fp32, -inf for a row without keys.

    Returns:
        O, of the shape and dtype of ``q`` (0 in a row without keys), or O and L. Both pass gradients on.

    Raises:
        ValueError: shapes, dtypes or a mask that do not belong together; lengths of 0.
    """
    check_heads(q, k, v)
    check_probability(dropout_p)
    check_blocks(block_q, block_k)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    tiling = Tiling(q.shape[2], k.shape[2], block_q, block_k, causal)
    O, L = FlashAttention.apply(q, k, v, broadcast_mask(mask, q, k), tiling, scale, dropout_p)
    return (O, L) if return_logsumexp else O


@dataclass(frozen=True)
class Tiling:
    """How the square of ``rows`` x ``keys`` scores is cut into tiles, and which tiles are computed."""

    rows: int
    keys: int
    block_q: int
    block_k: int
    causal: bool

    def query_blocks(self) -> Iterator[slice]:
        for start in range(0, self.rows, self.block_q):
            yield slice(start, min(start + self.block_q, self.rows))

    def key_blocks(self, i: slice) -> Iterator[slice]:
        """The blocks of keys that queries ``i`` meet: with a causal mask, none that lies above the diagonal."""
        visible = min(self.keys, i.stop + self.keys - self.rows) if self.causal else self.keys
        for start in range(0, visible, self.block_k):
            yield slice(start, min(start + self.block_k, self.keys))

    def scores(self, Q_i: Tensor, K_j: Tensor, i: slice, j: slice, mask: Tensor | None) -> Tensor:
        """S of one tile, ``(batch, kv_heads, group, block_q, block_k)``; -inf where a key is hidden."""
        S = Q_i @ K_j.mT
        if mask is not None:
            S = S.masked_fill(~mask[..., i, j], -torch.inf)
        shift = self.keys - self.rows
        if self.causal and j.stop - 1 > i.start + shift:  # this tile crosses the diagonal
            row = torch.arange(i.start, i.stop, device=S.device)[:, None]
            S = S.masked_fill(torch.arange(j.start, j.stop, device=S.device) > row + shift, -torch.inf)
        return S


class FlashAttention(torch.autograd.Function):
    """Saves q, k, v, the mask, O and L for backward: bytes that grow with the length, not with its square."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        tiling: Tiling,
        scale: float,
        dropout_p: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.tiling, ctx.scale, ctx.dropout_p = tiling, scale, dropout_p
        ctx.random_state = random_state(q.device) if dropout_p else None
        wide = torch.promote_types(q.dtype, torch.float32)  # what is added up, is added up in at least fp32
        batch, heads, rows, size = q.shape
        # Stored as (batch, rows, heads, size): the caller puts the heads beside each other without a copy.
        O = q.new_empty(batch, rows, heads, size).transpose(1, 2)
        L = q.new_empty(batch, heads, rows, dtype=wide)
        # (batch, kv_heads, group or 1, length, size), and the mask (batch, kv_heads, group, rows, keys)
        Q, K, V = by_group(q, k), k.unsqueeze(2), v.unsqueeze(2)
        seen = None if mask is None else by_group(mask, k)
        with without_autocast(q.device):
            for i in tiling.query_blocks():
                Q_i = Q[..., i, :].to(wide) * scale
                part = no_keys(Q_i)
                for j in tiling.key_blocks(i):
                    S = tiling.scores(Q_i, K[..., j, :].to(wide), i, j, seen)
                    part = merge(part, attend(S, V[..., j, :], dropout_mask(S, dropout_p)))
                by_group(O, k)[..., i, :] = part.output().to(q.dtype)
                by_group(L, k)[..., i] = part.logsumexp()
        ctx.save_for_backward(q, k, v, mask, O, L)
        return O, L

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dO: Tensor, dL: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, O, L = ctx.saved_tensors
        tiling, scale, p = ctx.tiling, ctx.scale, ctx.dropout_p
        generator = generator_in(ctx.random_state, q.device) if p else None
        L = L.masked_fill(L.isneginf(), torch.inf)  # a row without keys: then exp(S - L) is 0, not NaN
        # D_r = sum over the keys of P dP = the sum of dO O: what softmax's backward subtracts in row r. The gradient of
        # L, which is dL P for the scores, is added in the same place.
        D = (dO.to(L.dtype) * O.to(L.dtype)).sum(-1) - dL  # (batch, heads, rows)
        Q, K, V = by_group(q, k), k.unsqueeze(2), v.unsqueeze(2)
        dO, L, D = (by_group(x, k) for x in (dO, L, D))
        seen = None if mask is None else by_group(mask, k)
        dQ = torch.empty_like(Q)
        dK, dV = K.new_zeros(K.shape, dtype=L.dtype), V.new_zeros(V.shape, dtype=L.dtype)
        with without_autocast(q.device):
            for i in tiling.query_blocks():
                Q_i, dO_i = Q[..., i, :].to(L.dtype) * scale, dO[..., i, :].to(L.dtype)
                dQ_i = torch.zeros_like(Q_i)
                for j in tiling.key_blocks(i):  # the order of forward, so that dropout draws the same numbers
                    K_j, V_j = K[..., j, :].to(L.dtype), V[..., j, :].to(L.dtype)
                    P = torch.exp(tiling.scores(Q_i, K_j, i, j, seen) - L[..., i, None])
                    Z = dropout_mask(P, p, generator)
                    dropped = P if Z is None else P * Z
                    # Every query head of a group adds its share to the one head of keys and values.
                    dV[..., j, :] += (dropped.mT @ dO_i).sum(2, keepdim=True)
                    dP = dO_i @ V_j.mT
                    dS = P * ((dP if Z is None else dP * Z) - D[..., i, None])
                    dQ_i += scale * (dS @ K_j)
                    dK[..., j, :] += (dS.mT @ Q_i).sum(2, keepdim=True)  # Q_i holds the scale already
                dQ[..., i, :] = dQ_i.to(q.dtype)
        return dQ.flatten(1, 2), dK.squeeze(2).to(k.dtype), dV.squeeze(2).to(v.dtype), None, None, None, None


def by_group(x: Tensor, k: Tensor) -> Tensor:
    """``(batch, heads, ...)`` as ``(batch, kv_heads, group, ...)``: a view."""
    return x.unflatten(1, (k.shape[1], -1))


def dropout_mask(S: Tensor, p: float, generator: torch.Generator | None = None) -> Tensor | None:
    """Of the shape of the tile: 0 with probability p, else 1 / (1 - p); None where nothing is dropped."""
    return torch.empty_like(S).bernoulli_(1 - p, generator=generator) / (1 - p) if p else None


def random_state(device: torch.device) -> Tensor:
    """Where the device's random generator stands: 5 kB on the CPU, 16 bytes on a GPU."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def generator_in(state: Tensor, device: torch.device) -> torch.Generator:
    """A generator of backward's own, which repeats what forward drew and leaves the device's as it is."""
    generator = torch.Generator(device if device.type == "cuda" else "cpu")
    generator.set_state(state)
    return generator


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Autocast would compute the tiles in 16 bits."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()
