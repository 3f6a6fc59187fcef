"""A by-hand file with one line changed (chapters 07, 15 and 16), and what a change of FlashAttention moves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.observe.ledgers.saved import saved_tensors


def changed(by_hand: ModuleType, old: str, new: str) -> ModuleType:
    """A by-hand file as a module of its own, run from its source with ``new`` in the place of ``old``.

    Raises:
        ValueError: ``old`` does not stand in the source exactly once.
    """
    source = inspect.getsource(by_hand)
    if source.count(old) != 1:
        raise ValueError(f"{old!r} stands in the by-hand file {source.count(old)} times, and must stand once")
    mine = ModuleType(f"{by_hand.__name__} (changed)")
    # The file's annotations stay values, as a dataclass in it needs them: this file's own are strings.
    exec(compile(source.replace(old, new), mine.__name__, "exec", dont_inherit=True), vars(mine))
    return mine


class Apply(nn.Module):
    """A function of q, k, v as a module, for the ledgers that watch modules."""

    def __init__(self, attention: Callable[..., Tensor]) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attention(q, k, v)


def kept_bytes(attention: Callable[..., Tensor], *shape: int, **like: Any) -> int:
    """What autograd keeps for backward: q, k and v have this shape, in fp32 or as ``torch.empty`` is told."""
    q, k, v = (torch.empty(shape, **like) for _ in range(3))
    return sum(t.bytes for t in saved_tensors(Apply(attention), q, k, v))


def wrong_by(
    attention: Callable[..., Tensor], right: Callable[..., Tensor], tokens: int = 128, scale: float = 1
) -> list[float]:
    """The largest error of each row of the output, beside the ``right`` attention; scores are about ``scale``."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 4, tokens, 32, generator=generator)
    q *= scale
    return (attention(q, k, v) - right(q, k, v)).abs().amax((0, 1, 3)).tolist()
