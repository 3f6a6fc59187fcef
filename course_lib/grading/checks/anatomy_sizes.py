"""Exercise 02.5: parameters and cache bytes of a configuration, from the formulas and counted on a real model."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

Settings = Mapping[str, Any]


def drawn(seed: int, **changes: Any) -> dict[str, Any]:
    """A configuration of random sizes."""
    dice = random.Random(seed)
    kv_heads = dice.randint(1, 3)
    heads, part = kv_heads * dice.randint(2, 4), 2 * dice.randint(2, 5)
    found = {
        "vocab": dice.randint(50, 900),
        "hidden": heads * part,
        "layers": dice.randint(2, 5),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": part + 2 * dice.randint(1, 3),  # not hidden / heads
        "inner": dice.randint(20, 200),
        "gated": True,
        "qkv_bias": False,
        "norm": "rms",
        "parallel": False,
        "tied": False,
    }
    return found | changes


def counted(c: Settings, mistake: str = "") -> int:
    """The number of parameters, by formula."""
    h, q, kv = c["hidden"], c["heads"] * c["head_size"], c["kv_heads"] * c["head_size"]
    if mistake == "kv heads":
        kv = q
    if mistake in ("head size", "query width"):
        q = h
    if mistake == "head size":
        kv = c["kv_heads"] * (h // c["heads"])
    biases = {"bias": 0, "wide bias": 3 * q, "output bias": q + 2 * kv + h}.get(mistake, q + 2 * kv)
    attention = h * (q + 2 * kv) + q * h + biases * c["qkv_bias"]
    mlp = (3 if c["gated"] or mistake == "three" else 2) * h * c["inner"]
    if mistake == "two":
        mlp = 2 * h * c["inner"]
    norm = (2 if c["norm"] == "layer" and mistake != "norm bias" else 1) * h
    norms = 2 if not c["parallel"] or mistake == "two norms" else 1
    last = 0 if mistake == "last norm" else norm
    words = c["vocab"] * h * (1 if c["tied"] != (mistake == "tied") else 2)
    return words + c["layers"] * (attention + mlp + norms * norm) + last


PARAMETERS: dict[str, Callable[..., int]] = {
    "when keys and values have as many heads as the queries": partial(counted, mistake="kv heads"),
    "when the size of a head is taken to be hidden / heads": partial(counted, mistake="head size"),
    "when the queries of a token are taken to be as wide as hidden": partial(counted, mistake="query width"),
    "when the biases of queries, keys and values are left out": partial(counted, mistake="bias"),
    "when keys and values have a bias as wide as that of the queries": partial(counted, mistake="wide bias"),
    "when the output of attention has a bias, too": partial(counted, mistake="output bias"),
    "when every MLP has two matrices": partial(counted, mistake="two"),
    "when every MLP has three matrices": partial(counted, mistake="three"),
    "when the bias of LayerNorm is left out": partial(counted, mistake="norm bias"),
    "when the parallel block has two norms": partial(counted, mistake="two norms"),
    "when the norm behind the last layer is left out": partial(counted, mistake="last norm"),
    "when tied and separate matrices are confused": partial(counted, mistake="tied"),
}


def cached(c: Settings, itemsize: int, mistake: str = "") -> int:
    """Bytes of keys and values for one token in all layers."""
    heads = c["heads"] if mistake == "all heads" else c["kv_heads"]
    size = c["hidden"] // c["heads"] if mistake == "head size" else c["head_size"]
    kinds = 1 if mistake == "keys" else 2
    layers = 1 if mistake == "one layer" else c["layers"]
    return kinds * layers * heads * size * (1 if mistake == "numbers" else itemsize)


CACHE: dict[str, Callable[..., int]] = {
    "when there is a key and a value for every query head": partial(cached, mistake="all heads"),
    "when the size of a head is taken to be hidden / heads": partial(cached, mistake="head size"),
    "when only keys are counted": partial(cached, mistake="keys"),
    "when only one layer is counted": partial(cached, mistake="one layer"),
    "when numbers are counted, and not their bytes": partial(cached, mistake="numbers"),
}


def longest(c: Settings, memory: int, itemsize: int, mistake: str = "") -> float:
    """How many tokens' keys and values have room beside the weights."""
    weights = counted(c) * {"no weights": 0, "numbers": 1}.get(mistake, itemsize)
    free, each = memory - weights, cached(c, itemsize)
    if mistake == "parts":
        return max(0, free / each)
    if mistake == "up":
        return max(0, -(-free // each))
    if mistake == "below":
        return max(0, (free - 1) // each)
    return free // each if mistake == "negative" else max(0, free // each)


LONGEST: dict[str, Callable[..., float]] = {
    "when the weights take no memory": partial(longest, mistake="no weights"),
    "when the weights' numbers are subtracted, and not their bytes": partial(longest, mistake="numbers"),
    "when the division leaves a fraction of a token": partial(longest, mistake="parts"),
    "when the last token is only partly in memory": partial(longest, mistake="up"),
    "when memory may not be exactly full": partial(longest, mistake="below"),
    "when weights that do not fit leave a number below zero": partial(longest, mistake="negative"),
}


def built(c: Settings) -> nn.Module:
    """A model of these sizes on the meta device: the oracle, which knows no formula."""

    def norm() -> nn.Module:
        return nn.LayerNorm(c["hidden"]) if c["norm"] == "layer" else nn.RMSNorm(c["hidden"])

    with torch.device("meta"):
        layers = []
        for _ in range(c["layers"]):
            width, narrow = c["heads"] * c["head_size"], c["kv_heads"] * c["head_size"]
            parts = [nn.Linear(c["hidden"], n, bias=c["qkv_bias"]) for n in (width, narrow, narrow)]
            parts += [
                nn.Linear(width, c["hidden"], bias=False),
                nn.Linear(c["inner"], c["hidden"], bias=False),
            ]
            parts += [nn.Linear(c["hidden"], c["inner"], bias=False) for _ in range(1 + c["gated"])]
            parts += [norm() for _ in range(1 if c["parallel"] else 2)]
            layers.append(nn.ModuleList(parts))
        words, head = nn.Embedding(c["vocab"], c["hidden"]), nn.Linear(c["hidden"], c["vocab"], bias=False)
        if c["tied"]:
            head.weight = words.weight
        return nn.ModuleList([words, *layers, norm(), head])


class Made(TorchFunctionMode):
    """Counts calls of PyTorch's functions: a formula needs none."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))
