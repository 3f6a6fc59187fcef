"""Scaling gradients to a norm that was computed elsewhere: over shards, stages, or one device."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def scale_gradients(gradients: Iterable[Tensor], norm: Tensor, max_norm: float) -> None:
    """Scale gradients in place so that the norm of all of them together, which is ``norm``, is at most ``max_norm``.

    The factor is that of ``torch.nn.utils.clip_grad_norm_``: max_norm / (norm + 1e-6), and at most 1. It is a number of
    Python, since a tensor of it in 16 bits would be rounded.
    """
    factor = float(max_norm / (norm + 1e-6))
    if factor >= 1:  # not a number is less than nothing: as torch does, it then spreads to all gradients
        return
    for gradient in gradients:
        gradient.mul_(factor)
