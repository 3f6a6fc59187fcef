"""A stage that takes as long as it is told, for pictures of time on a computer with fewer cores than ranks."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SlowStage(nn.Module):
    """A linear layer, ``(batch, width)`` in and out, that sleeps for a given time in each part of its work.

    A sleeping rank needs no core. So four ranks on two cores compute side by side as they would on four cores, and
    all messages and gradients are real.

    Args:
        forward_seconds, backward_input_seconds, backward_weight_seconds: of one microbatch; a whole backward takes
            the sum of the last two.
        width: of the layer.
    """

    def __init__(
        self,
        forward_seconds: float,
        backward_input_seconds: float,
        backward_weight_seconds: float,
        width: int = 8,
    ) -> None:
        super().__init__()
        self.seconds = forward_seconds, backward_input_seconds, backward_weight_seconds
        self.scale = nn.Parameter(torch.ones(width))  # the first stage's backward for the input ends here
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        forward, backward_input, backward_weight = self.seconds
        x = Sleep.apply(x * self.scale, forward, backward_input)
        weight = Sleep.apply(self.linear.weight, 0.0, backward_weight)
        return F.linear(x, weight, self.linear.bias)


class Sleep(torch.autograd.Function):
    """Returns its input, after a while; backward too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: float, backward: float) -> Tensor:
        ctx.seconds = backward
        time.sleep(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradient, None, None
