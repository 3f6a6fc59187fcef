"""How attention learns where a token stands."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RotaryPositions(nn.Module):
    """RoPE (arXiv:2104.09864): turn the pair (x_i, x_{i + size/2}) at position m by the angle m theta^(-2i/size).

    The product of a turned query and a turned key depends on their distance and not on where they stand.
    """

    def __init__(self, head_size: int, theta: float) -> None:
        super().__init__()
        self.head_size, self.theta = head_size, theta

    def forward(self, *heads: Tensor, positions: Tensor | None = None) -> tuple[Tensor, ...]:
        """Each ``(batch, heads, seq, size)``. ``positions`` ``(seq,)`` or ``(batch, seq)``; None: 0, 1, 2, …"""
        seq, device = heads[0].shape[-2], heads[0].device
        if positions is None:
            positions = torch.arange(seq, device=device)
        exponents = torch.arange(0, self.head_size, 2, device=device).float() / self.head_size
        angles = positions.float()[..., None] * (1.0 / self.theta**exponents)  # (…, seq, size / 2)
        if positions.dim() == 2:
            angles = angles[:, None]  # one batch's positions for all its heads
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return tuple(x * cos.to(x.dtype) + _half_turned(x) * sin.to(x.dtype) for x in heads)


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
