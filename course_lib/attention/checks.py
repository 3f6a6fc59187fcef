"""What every attention of this folder asks of its inputs: one sentence for what it cannot take."""

from __future__ import annotations

import torch
from torch import Tensor


def check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Query ``(batch, heads, rows, size)``; key and value ``(batch, kv_heads, keys, size)``.

    Raises:
        ValueError: shapes, dtypes or devices that do not belong together, a length of 0, or no floating point.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(f"{name} must be (batch, heads, length, size), not of shape {tuple(x.shape)}.")
        if not x.numel():
            raise ValueError(f"{name} must have at least one of each, but its shape is {tuple(x.shape)}.")
        if not x.is_floating_point():
            raise ValueError(f"{name} must be of floating point, not {x.dtype}.")
    if k.shape != v.shape:
        raise ValueError(f"k and v must have one shape, not {tuple(k.shape)} and {tuple(v.shape)}.")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(
            f"q and k must agree in batch and head size, not have {tuple(q.shape)} and {tuple(k.shape)}."
        )
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} query heads cannot share {k.shape[1]} heads of keys and values; "
            f"the second number must divide the first."
        )
    if not (q.dtype == k.dtype == v.dtype and q.device == k.device == v.device):
        kinds = ", ".join(f"{x.dtype} on {x.device}" for x in (q, k, v))
        raise ValueError(f"q, k and v must be of one dtype and on one device, not {kinds}.")


def broadcast_mask(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask as ``(batch, heads, rows, keys)``, without a copy.

    Raises:
        ValueError: it is not boolean, or its shape does not broadcast to this one.
    """
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean, true where a query may look at a key, not {mask.dtype}.")
    shape = (*q.shape[:3], k.shape[2])
    try:
        return mask.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"mask must broadcast to (batch, heads, rows, keys) = {shape}, and its shape is {tuple(mask.shape)}; "
            f"a mask of padding is (batch, 1, 1, keys)."
        ) from None


def check_probability(dropout_p: float) -> None:
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p is {dropout_p}; it is a probability, from 0 to below 1.")


def check_blocks(block_q: int, block_k: int) -> None:
    for name, block in (("block_q", block_q), ("block_k", block_k)):
        if not isinstance(block, int) or isinstance(block, bool) or block < 1:
            raise ValueError(f"{name} is {block}; a tile needs a whole number of rows or keys, at least 1.")
