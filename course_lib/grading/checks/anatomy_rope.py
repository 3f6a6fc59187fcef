"""Exercise 02.2: rotary positions on neighbouring pairs, keys that are moved, and what likely mistakes give."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def rotated(x: Tensor, positions: Tensor, turned: int, base: float, mistake: str = "") -> Tensor:
    """Pair i, the numbers 2i and 2i + 1 of a head, is turned by position × base^(-2i/turned)."""
    wide = torch.float64
    if mistake == "from 0":
        positions = torch.arange(len(positions))
    exponents = torch.arange(0, turned, 2, dtype=wide) / (x.shape[-1] if mistake == "size" else turned)
    if mistake == "i":
        exponents = exponents / 2
    angles = positions.to(wide)[:, None] * base**-exponents  # (seq, turned/2)
    if mistake == "rounded":
        if x.dtype != torch.bfloat16:
            return rotated(x, positions, turned, base)
        angles = (positions.to(x.dtype)[:, None] * (base**-exponents).to(x.dtype)).to(wide)
    if mistake == "back":
        angles = -angles
    cos, sin = angles.cos(), angles.sin()
    head, rest = x[..., :turned].to(wide), x[..., turned:]
    a, b = head.chunk(2, -1) if mistake == "halves" else (head[..., 0::2], head[..., 1::2])
    if mistake in ("halves", "not joined"):
        both = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    else:
        both = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    return torch.cat([both.to(x.dtype), rest], -1)


ROTATING: dict[str, Callable[..., Tensor]] = {
    "when number i is turned with number i + turned/2, as in LLaMA": partial(rotated, mistake="halves"),
    "when pairs are turned the other way": partial(rotated, mistake="back"),
    "when the exponent is divided by the size of a head, and not by `turned`": partial(
        rotated, mistake="size"
    ),
    "when pair i is turned by position × base^(-i/turned)": partial(rotated, mistake="i"),
    "when the given positions are not used, and counting begins at 0": partial(rotated, mistake="from 0"),
    "when the angles are computed in 16 bits": partial(rotated, mistake="rounded"),
    "when the turned pairs are not put back beside each other": partial(rotated, mistake="not joined"),
}


def shifted(keys: Tensor, by: int, turned: int, base: float, mistake: str = "") -> Tensor:
    """Turned keys as if each stood ``by`` places earlier."""
    steps = torch.full((keys.shape[-2],), by if mistake == "forward" else -by)
    if mistake == "places":
        steps = torch.arange(keys.shape[-2]) - by
    if mistake == "halves":
        return rotated(keys, steps, turned, base, "halves")
    return rotated(keys, steps, turned, base)


SHIFTING: dict[str, Callable[..., Tensor]] = {
    "when keys are moved `by` places later": partial(shifted, mistake="forward"),
    "when each key is turned by its place in the cache as well": partial(shifted, mistake="places"),
    "when number i is turned with number i + turned/2": partial(shifted, mistake="halves"),
}


class Angles(TorchDispatchMode):
    """Counts the angles whose cosine and whose sine is computed; the larger of both."""

    def __init__(self) -> None:
        super().__init__()
        self.cosines = self.sines = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.partition("::")[2].rstrip("_")
        both = name == "polar" or (name == "exp" and isinstance(result, Tensor) and result.is_complex())
        if name == "cos" or both:
            self.cosines += result.numel()
        if name == "sin" or both:
            self.sines += result.numel()
        return result

    @property
    def count(self) -> int:
        return max(self.cosines, self.sines)
