"""Attention of some queries to some keys, a part of a whole that others complete; and its backward.

Forward gives the output O, as if there were no other keys, and for each row L, the logarithm of the sum of exp(score).
Backward gets O and L of all keys: with them exp(score - L) is a weight of the whole, and its gradient needs no other
part.

A mask is added to the scores: 0, or -inf where a key is hidden. A row may be hidden altogether: then its L is -inf, and
its O is 0. (The operator on the CPU says L = 0 there, which a merge would take for a key with the score 0.)

Shapes: queries, O ``(batch, heads, rows, size)``; keys, values ``(batch, kv_heads, keys, size)``; L ``(batch, heads,
rows)``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.attention.flash import by_group

ATEN = torch.ops.aten


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """O and L."""
    if fused(q, v):
        O, L = ATEN._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, is_causal=causal, attn_mask=None if mask is None else mask.to(q.dtype)
        )
    else:
        S = scores(q, k, causal, mask)
        L = S.logsumexp(-1)
        P = torch.exp(S - finite(L)[..., None])
        O = (P @ by_group(v, v).to(P.dtype)).flatten(1, 2).to(q.dtype)
        L = L.flatten(1, 2)
    if mask is not None:
        hidden = mask.isneginf().all(-1)  # (batch, heads or 1, rows or 1)
        O, L = O.masked_fill(hidden[..., None], 0), L.masked_fill(hidden, -torch.inf)
    return O, L


def attend_backward(
    dO: Tensor,
    q: Tensor,
    O: Tensor,
    L: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values, where O and L are those of all keys."""
    L = L.masked_fill(L.isneginf(), torch.inf)  # a row without keys: exp(score - L) is 0
    if fused(q, v):
        # Its gradient of shared keys would be that of one head.
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k, v))
        dq, dk, dv = ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
            dO,
            q,
            k,
            v,
            O,
            L.contiguous(),
            0.0,
            causal,
            attn_mask=None if mask is None else mask.to(q.dtype),
        )
        if group > 1:
            dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (dk, dv))
        return dq, dk, dv
    S = scores(q, k, causal, mask)
    wide, scale = S.dtype, q.shape[-1] ** -0.5
    dO, O, q = (by_group(x, k).to(wide) for x in (dO, O, q))
    P = torch.exp(S - by_group(L, k)[..., None])
    D = (dO * O).sum(-1, keepdim=True)
    dS = scale * P * (dO @ v.unsqueeze(2).to(wide).mT - D)
    dq = (dS @ k.unsqueeze(2).to(wide)).flatten(1, 2)
    return dq.to(k.dtype), (dS.mT @ q).sum(2).to(k.dtype), (P.mT @ dO).sum(2).to(k.dtype)


def fused(q: Tensor, v: Tensor) -> bool:
    """PyTorch's operator for the CPU."""
    return q.device.type == "cpu" and q.numel() > 0 and q.shape[-1] == v.shape[-1]


def scores(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
    """``(batch, kv_heads, group, rows, keys)``, in at least fp32."""
    wide = torch.promote_types(q.dtype, torch.float32)
    S = by_group(q, k).to(wide) @ k.unsqueeze(2).to(wide).mT * q.shape[-1] ** -0.5
    if mask is not None:
        S = S + (by_group(mask, k) if mask.shape[1] == q.shape[1] else mask[:, None])
    if causal:
        S = S.masked_fill(torch.ones_like(S[0, 0, 0], dtype=torch.bool).triu(1), -torch.inf)
    return S


def merge(O: Tensor, L: Tensor, part_O: Tensor, part_L: Tensor) -> None:
    """Join a part to O and L, in place: L = log(exp L_1 + exp L_2), O = exp(L_1 - L) O_1 + exp(L_2 - L) O_2."""
    share = torch.sigmoid(part_L - L)  # exp(L_2 - L); the other is 1 - exp(L_2 - L)
    if (none := part_L.isneginf()).any():  # -inf - -inf is no number
        share = share.masked_fill(none, 0)
    O.lerp_(part_O.to(O.dtype), share[..., None])
    L.copy_(torch.logaddexp(L, part_L))


def finite(L: Tensor) -> Tensor:
    """-inf - -inf is no number; where no key was seen, 0 in the place of L makes every exponential 0."""
    return L.masked_fill(L.isneginf(), 0)
