"""Exercise 02.3: fewer heads of keys and values from trained ones, attention with them, and likely mistakes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def pooled(weight: Tensor, heads: int, kv_heads: int, mistake: str = "") -> Tensor:
    """The mean of each group of neighbouring heads: (heads × size, …) to (kv_heads × size, …)."""
    size, group = len(weight) // heads, heads // kv_heads
    of_head = weight.reshape(heads, size, *weight.shape[1:])
    if mistake == "first":
        kept = of_head[::group]
    elif mistake == "sum":
        kept = of_head.unflatten(0, (kv_heads, group)).sum(1)
    elif mistake == "turns":
        kept = of_head.unflatten(0, (group, kv_heads)).mean(0)
    elif mistake == "rows":
        kept = of_head.flatten(0, 1).reshape(kv_heads * size, group, *weight.shape[1:]).mean(1)
        return kept
    else:
        kept = of_head.unflatten(0, (kv_heads, group)).mean(1)
    return kept.flatten(0, 1)


POOLING: dict[str, Callable[..., Tensor]] = {
    "when the first head of each group is kept": partial(pooled, mistake="first"),
    "when the heads of a group are added up and not divided by their number": partial(pooled, mistake="sum"),
    "when head i goes to the group `i % kv_heads`": partial(pooled, mistake="turns"),
    "when neighbouring rows are averaged, and not the same row of neighbouring heads": (
        partial(pooled, mistake="rows")
    ),
}


def attended(q: Tensor, k: Tensor, v: Tensor, mistake: str = "") -> Tensor:
    """Causal attention; the last query stands at the last key. Query head i uses KV head i // (heads/kv_heads)."""
    heads, m, size = q.shape[1:]
    kv_heads, n = k.shape[1:3]
    spread = (lambda t: t.repeat(1, heads // kv_heads, 1, 1)) if mistake == "turns" else (
        lambda t: t.repeat_interleave(heads // kv_heads, 1)
    )  # fmt: skip
    scores = q @ spread(k).transpose(-1, -2)
    if mistake != "scale":
        scores = scores / (q.shape[1] * size if mistake == "hidden" else size) ** 0.5
    offset = 0 if mistake == "from 0" else n - m
    if mistake != "all":
        ahead = torch.arange(n) > torch.arange(m)[:, None] + offset - int(mistake == "not itself")
        scores = scores.masked_fill(ahead, 0 if mistake == "zero" else float("-inf"))
    return scores.softmax(-1) @ spread(v)


ATTENDING: dict[str, Callable[..., Tensor]] = {
    "when query head i uses the KV head `i % kv_heads`": partial(attended, mistake="turns"),
    "when the scores are not divided by the root of the size of a head": partial(attended, mistake="scale"),
    "when the scores are divided by the root of the whole width": partial(attended, mistake="hidden"),
    "when the first query stands at the first key": partial(attended, mistake="from 0"),
    "when the scores of later keys are set to 0, and not to -inf": partial(attended, mistake="zero"),
    "when later keys are not masked": partial(attended, mistake="all"),
    "when a query does not see the key at its own place": partial(attended, mistake="not itself"),
}


class LargestTensor(TorchDispatchMode):
    """The most numbers of a tensor that is written while this is on; views of the inputs are none."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and _storage(tensor) not in given:
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
