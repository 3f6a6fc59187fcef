"""DiLoCo (Douillard et al., arXiv:2311.08105): local steps, and an optimizer for the average of what they changed.

Each rank makes H steps with AdamW, the inner optimizer. The average way that the ranks went is taken for a gradient,
and the outer optimizer, SGD with Nesterov momentum, applies it to the weights with which all ranks began. The paper
has H = 500, an outer learning rate of 0.7 and a momentum of 0.9, and sends 500 times less than data parallelism.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from course_lib.compression.hook import assign, flatten
from course_lib.compression.local_sgd import LocalOptimizer, average
from simulator.inputs.checks import at_least, not_negative, part


def outer_step(outer: Tensor, mean: Tensor, momentum: Tensor, *, lr: float, beta: float) -> None:
    """Move the outer weights, in place, by Nesterov momentum m.

    Delta = outer - mean, then m <- beta m + Delta, then outer <- outer - lr (Delta + beta m). These are the steps of
    ``torch.optim.SGD(nesterov=True)`` with the gradient Delta.

    Args:
        outer: the weights with which all ranks began, (n,).
        mean: the average of the weights at which they have arrived, (n,).
        momentum: m, (n,); changed in place, too.
    """
    delta = outer - mean
    momentum.mul_(beta).add_(delta)
    outer.sub_(lr * (delta + beta * momentum))


class DiLoCo(LocalOptimizer):
    """An outer step after every ``every`` inner steps.

    With ``outer_lr=1`` and ``outer_momentum=0`` it is local SGD. A rank keeps two more copies of the weights: the
    outer weights and their momentum. They are the same on all ranks. The inner optimizer keeps its states.

    Args:
        optimizer: the inner one, such as ``torch.optim.AdamW(model.parameters())``.
        every: inner steps between two outer ones (the paper's H).
        outer_lr, outer_momentum: of the outer optimizer.

    Raises:
        ValueError: a setting is out of its range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        every: int = 500,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        group: ProcessGroup | None = None,
    ) -> None:
        at_least(1, every=every)
        not_negative(outer_lr=outer_lr)
        if outer_momentum != 0:
            part(outer_momentum=outer_momentum)
        super().__init__(optimizer, group)
        self.every, self.outer_lr, self.outer_momentum = every, outer_lr, outer_momentum
        self.outer = flatten(self.parameters)  # (n,)
        self.momentum = torch.zeros_like(self.outer)

    def after_step(self) -> None:
        if self.steps % self.every == 0:
            mean = average(self.parameters, self.group)
            outer_step(self.outer, mean, self.momentum, lr=self.outer_lr, beta=self.outer_momentum)
            assign(self.parameters, self.outer)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"outer": self.outer, "momentum": self.momentum}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.outer.copy_(state_dict["outer"])
        self.momentum.copy_(state_dict["momentum"])
