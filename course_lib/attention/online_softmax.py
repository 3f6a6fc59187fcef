"""Softmax over keys that arrive in blocks: the one rule that joins two parts of attention.

Attention of one query is a mean of the values, weighted by exp(score). Over some of the keys it is known by three
numbers for each row of the scores: their largest m, the sum l of exp(score - m), and the sum o of exp(score - m) v.
Two parts over different keys are joined when both are brought to the same m (Milakov and Gimelshein,
arXiv:1805.02867; Rabe and Staats, arXiv:2112.05682; FlashAttention, arXiv:2205.14135, section 3.1).

Shapes in comments: ``...`` (batch and heads), ``rows`` (queries), ``keys``, ``size`` (of one head).
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor


class PartialAttention(NamedTuple):
    """Attention over some of the keys, not yet divided by the sum of the weights.

    Args:
        m: ``(..., rows)``, the largest score; -inf: no key was seen.
        l: ``(..., rows)``, the sum of exp(score - m); 0: no key was seen.
        o: ``(..., rows, size)``, the sum of exp(score - m) v.
    """

    m: Tensor
    l: Tensor
    o: Tensor

    def output(self) -> Tensor:
        """``(..., rows, size)``: o / l, and 0 for a row that saw no key."""
        return self.o / self.l.masked_fill(self.l == 0, 1)[..., None]

    def logsumexp(self) -> Tensor:
        """``(..., rows)``: L = m + log l, all that backward needs of m and l; -inf for a row that saw no key."""
        return self.m + self.l.log()


def no_keys(o: Tensor) -> PartialAttention:
    """The neutral element of ``merge``: m = -inf, l = 0 and o = 0, of the shape, dtype and device of ``o``."""
    return PartialAttention(
        o.new_full(o.shape[:-1], -torch.inf), o.new_zeros(o.shape[:-1]), torch.zeros_like(o)
    )


def attend(scores: Tensor, v: Tensor, dropout_mask: Tensor | None = None) -> PartialAttention:
    """Attention over one block of keys.

    Args:
        scores: ``(..., rows, keys)``, in the dtype to compute in; -inf hides a key from a row. No keys are allowed.
        v: ``(..., keys, size)``, its values.
        dropout_mask: ``(..., rows, keys)``, 0 or 1 / (1 - probability); it multiplies the weights, not their sum.
    """
    if not scores.shape[-1]:
        return no_keys(scores.sum(-1, keepdim=True) * v.to(scores.dtype).sum(-2, keepdim=True))
    m = scores.amax(-1)  # (..., rows)
    p = torch.exp(scores - _finite(m)[..., None])  # (..., rows, keys)
    l = p.sum(-1)  # (..., rows)
    if dropout_mask is not None:
        p = p * dropout_mask
    return PartialAttention(m, l, p @ v.to(p.dtype))


def merge(first: PartialAttention, second: PartialAttention) -> PartialAttention:
    """Attention over the keys of both: a sum, after both are brought to the larger m.

    Associative and commutative but for rounding, so blocks may arrive in any order. A part whose keys are all hidden
    changes nothing, and two such parts give one, without NaN.
    """
    m = torch.maximum(first.m, second.m)
    a, b = torch.exp(first.m - _finite(m)), torch.exp(second.m - _finite(m))  # (..., rows), at most 1
    return PartialAttention(m, a * first.l + b * second.l, a[..., None] * first.o + b[..., None] * second.o)


def merge_all(first: PartialAttention, *others: PartialAttention) -> PartialAttention:
    """``merge`` of one part or more, from left to right."""
    return reduce(merge, others, first)


def _finite(m: Tensor) -> Tensor:
    """-inf minus -inf is no number; where no key was seen, 0 in the place of m makes every exponential 0."""
    return m.masked_fill(m.isneginf(), 0)
