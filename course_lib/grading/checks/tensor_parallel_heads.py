"""Exercise 09.4: attention from a fused matrix of queries, keys and values, and likely mistakes in cutting it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def attention_of(weight: Tensor, x: Tensor, heads: int, size: int) -> Tensor:
    """``(heads, tokens, size)`` from rows q, k, v; neighbouring query heads share a head of keys and values."""
    kv_heads = (len(weight) // size - heads) // 2
    q, k, v = ((x @ part.T).unflatten(1, (-1, size)).transpose(0, 1)
               for part in weight.split([heads * size, kv_heads * size, kv_heads * size]))  # fmt: skip
    return F.scaled_dot_product_attention(q[None], k[None], v[None], enable_gqa=True)[0]


def shape_problem(part: Any, heads: int, size: int, hidden: int) -> str | None:
    """Why attention cannot be computed from these rows."""
    if not isinstance(part, Tensor):
        return f"the result is {type(part).__name__}, not a tensor"
    if part.dim() != 2 or part.shape[1] != hidden:
        return f"the result has the shape {tuple(part.shape)}, and a row of the weight has {hidden} numbers"
    kv_heads, left = divmod(len(part) // size - heads, 2)
    if len(part) % size or left or kv_heads < 1 or heads % kv_heads:
        return (
            f"{len(part)} rows are not {heads} query heads with an equal number of heads of keys and of values, "
            f"each of {size} rows"
        )
    return None


def rows_needed(ranks: int, heads: int, kv_heads: int, size: int) -> int:
    return (heads // ranks + 2 * max(1, kv_heads // ranks)) * size


def _cut(
    weight: Tensor, x: Tensor, ranks: int, heads: int, kv_heads: int, size: int, mistake: str
) -> list[Tensor]:
    """What attention gives on each rank."""
    q, k, v = weight.split([heads * size, kv_heads * size, kv_heads * size])
    own, kv = heads // ranks, max(1, kv_heads // ranks)
    attention = partial(attention_of, x=x, heads=own, size=size)
    if mistake == "chunked":
        return [attention(part) for part in weight.chunk(ranks)]
    results = []
    for rank in range(ranks):
        first = rank * kv_heads // ranks
        rows = range(rank * own * size, (rank + 1) * own * size)
        if mistake == "cards":
            of_kv = range(rank % kv_heads, kv_heads, ranks) if kv_heads >= ranks else [rank % kv_heads]
            rows = [head * size + i for head in range(rank, heads, ranks) for i in range(size)]
            kv_rows = [head * size + i for head in of_kv for i in range(size)]
        else:
            if mistake == "turns":
                first = rank % kv_heads if kv_heads < ranks else first
            elif mistake == "first":
                first = 0 if kv_heads < ranks else first
            elif mistake == "all" and kv_heads < ranks:
                first, kv = 0, kv_heads
            kv_rows = range(first * size, (first + kv) * size)
        q_own, kv_rows = q[list(rows)], list(kv_rows)
        parts = [q_own, k[kv_rows], v[kv_rows]]
        if mistake == "q v k":
            parts = [q_own, v[kv_rows], k[kv_rows]]
        results.append(attention(torch.cat(parts)))
    return results


HEADS: dict[str, Callable[..., list[Tensor]]] = {
    "when the whole matrix is cut into equal parts, so that a rank has queries, or keys, or values": (
        partial(_cut, mistake="chunked")
    ),
    "when heads are dealt in turns (rank 0 gets heads 0, p, 2p, …), and not in equal shares one after the other": (
        partial(_cut, mistake="cards")
    ),
    "when a rank takes the KV head `rank % kv_heads`, and not the one that its query heads use": (
        partial(_cut, mistake="turns")
    ),
    "when every rank takes the first KV head": partial(_cut, mistake="first"),
    "when a rank keeps all KV heads, so that attention divides its query heads among all of them": (
        partial(_cut, mistake="all")
    ),
    "when the values stand before the keys": partial(_cut, mistake="q v k"),
}
