"""Local SGD: each rank trains alone for some steps, then all ranks average their weights (Stich, arXiv:1805.09767).

One all-reduce of the weights in H steps instead of one all-reduce of the gradients in each step: 1/H of DDP's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from course_lib.compression.hook import assign, flatten
from course_lib.runtime import trace
from simulator.inputs.checks import at_least


class LocalOptimizer(Optimizer):
    """An optimizer around another one: after each step of the inner one, ``after_step`` may send something.

    Parameter groups are the inner optimizer's own, so a learning-rate scheduler may be given either of the two. The
    model is not wrapped, and gradients stay local. Construction gives every rank the parameters of the group's first.
    Buffers, such as BatchNorm's running statistics, stay those of each rank.

    Args:
        optimizer: makes the steps of this rank, such as ``torch.optim.SGD(model.parameters(), 0.1)``.
        group: the ranks that train together; by default all.

    Raises:
        ValueError: ``optimizer`` is none.
    """

    def __init__(self, optimizer: Optimizer, group: ProcessGroup | None = None) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ValueError(f"optimizer must be a torch.optim.Optimizer, not {optimizer!r}")
        super().__init__(optimizer.param_groups, {})
        self.inner, self.group, self.steps = optimizer, group, 0
        self.parameters = [p for part in self.param_groups for p in part["params"]]
        flat = flatten(self.parameters)
        dist.broadcast(flat, group=group, group_src=0)
        assign(self.parameters, flat)

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        loss = self.inner.step(closure)
        self.steps += 1
        with torch.no_grad():
            self.after_step()
        return loss

    def after_step(self) -> None:
        """What a method does after each inner step."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict["inner"])
        self.param_groups = self.inner.param_groups
        self.steps = state_dict["steps"]


class LocalSGD(LocalOptimizer):
    """Average the weights of all ranks after every ``every`` steps (the paper's H).

    Any inner optimizer will do; its states, such as momentum, stay those of each rank.
    """

    def __init__(self, optimizer: Optimizer, every: int, group: ProcessGroup | None = None) -> None:
        at_least(1, every=every)
        super().__init__(optimizer, group)
        self.every = every

    def after_step(self) -> None:
        if self.steps % self.every == 0:
            assign(self.parameters, average(self.parameters, self.group))


def average(tensors: Iterable[Tensor], group: ProcessGroup | None) -> Tensor:
    """The mean over all ranks of the tensors laid end to end: (elements of all,)."""
    flat = flatten(list(tensors))
    flat /= dist.get_world_size(group)
    with trace.span("communication", "average weights"):
        dist.all_reduce(flat, group=group)
    return flat
