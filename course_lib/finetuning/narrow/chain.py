"""Side tuning in a pipeline: the narrow network passes through the stages beside the layers.

A model's chain names its parts and how each is called (``pipeline/stages.py``). Here the narrow network's parts are put
between them: its state travels as one more tensor behind the others, and each of its layers stands behind the frozen
layer that is as far up. A stage computes the layers of both that it holds, and backward goes through the narrow ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Call = Callable[..., Any]
Tensors = tuple[Tensor, ...]


class Mix(nn.Module):
    """R = α B + (1 - α) S, with α = sigmoid(a).

    Args:
        alpha: where α starts, between 0 and 1.
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        if not 0 < alpha < 1:
            raise ValueError(f"alpha starts at {alpha}; it must be between 0 and 1.")
        self.a = nn.Parameter(torch.logit(torch.tensor(alpha)))

    @property
    def alpha(self) -> Tensor:
        return torch.sigmoid(self.a)

    def forward(self, B: Tensor, S: Tensor) -> Tensor:
        return self.alpha * B + (1 - self.alpha) * S


@dataclass(frozen=True)
class Beside:
    """How layers are called, and what comes right behind one of them, by its number: the parts and their calls."""

    call: Call
    beside: Mapping[int, Mapping[str, Call]]

    def __call__(self, module: nn.Module, *tensors: Tensor) -> Tensors:
        return self.call(module, *tensors)


def spread(frozen: int, layers: int, name: str, call: Call) -> dict[int, dict[str, Call]]:
    """Behind which of the frozen layers each narrow layer stands."""
    found: dict[int, dict[str, Call]] = {}
    for j in range(layers):
        found.setdefault(max(0, (j + 1) * frozen // layers - 1), {})[f"{name}.{j}"] = call
    return found


def carry(call: Call, along: int = 1) -> Call:
    """The same, while the last tensors only travel along."""

    def carrying(module: nn.Module, *tensors: Tensor) -> Tensors:
        result = call(module, *tensors[:-along])
        others = result if isinstance(result, tuple) else (result,)
        return *others, *(t.view_as(t) for t in tensors[-along:])

    return carrying


def begin(at: int) -> Call:
    """Make the narrow state of the tensor at this place."""
    return lambda down, *tensors: (*tensors, down(tensors[at]))


def change(at: int) -> Call:
    """Apply a module to the tensor at this place, counted from the end."""
    return lambda module, *tensors: (*tensors[:at], module(tensors[at]), *tensors[at:][1:])


def blend(at: int, along: int) -> Call:
    """R in the place of B; what travelled along ends here, and S is its first."""

    def blending(mix: nn.Module, *tensors: Tensor) -> Tensors:
        B, S = tensors[at], tensors[-along]
        return *tensors[:at], mix(B, S), *tensors[at + 1 : -along]

    return blending


def without_dropout(module: nn.Module) -> None:
    """For good: in a frozen network it would be noise."""
    for inner in module.modules():
        if isinstance(inner, nn.Dropout):
            inner.p = 0.0
        elif isinstance(getattr(inner, "dropout", None), float):
            inner.dropout = 0.0
