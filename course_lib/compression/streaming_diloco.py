"""Streaming DiLoCo (Douillard et al., arXiv:2501.18512): the weights travel in fragments, and while training goes on.

DiLoCo sends all weights at once and waits for them. Here the model is cut into fragments that are sent at different
steps, so that the link is busy more evenly, and a fragment has some steps of time to arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from course_lib.compression.diloco import outer_step
from course_lib.compression.hook import assign, flatten
from course_lib.compression.local_sgd import LocalOptimizer
from course_lib.runtime import trace
from simulator.inputs.checks import at_least, not_negative, part
from simulator.inputs.compression import fragment_steps


@dataclass
class Fragment:
    """Some parameters, the step of a round after which they are sent, and their outer weights and momentum, (n,)."""

    parameters: list[Tensor]
    due: int  # 1 … every
    outer: Tensor
    momentum: Tensor
    sent: Tensor | None = None  # the mean, while it is on its way
    work: dist.Work | None = None


class StreamingDiLoCo(LocalOptimizer):
    """DiLoCo in fragments: of P fragments, fragment i is sent after step ceil((i + 1) every / P) of each round.

    It is taken up ``delay`` steps later. In these steps the local weights have moved on, so they are mixed with the
    new outer weights: local <- (1 - mix) outer + mix local. With one fragment and no delay it is DiLoCo.

    Args:
        optimizer: the inner one.
        fragments: lists of parameters, each parameter of the optimizer once; by default one for all.
        every: inner steps of a round (the paper's H).
        delay: inner steps from the send to the outer step (the paper's tau), less than ``every``.
        mix: the part of the local weights that stays (the paper's alpha), 0 to 1.

    Raises:
        ValueError: a setting is out of its range, or the fragments do not hold each parameter once.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        fragments: Sequence[Sequence[Tensor]] | None = None,
        every: int = 100,
        delay: int = 0,
        mix: float = 0.0,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        group: ProcessGroup | None = None,
    ) -> None:
        at_least(1, every=every)
        at_least(0, delay=delay)
        not_negative(outer_lr=outer_lr)
        for name, value in {"mix": mix, "outer_momentum": outer_momentum}.items():
            if value != 0:
                part(**{name: value})
        if delay >= every:
            raise ValueError(f"delay must be less than the {every} steps of a round, not {delay}")
        super().__init__(optimizer, group)
        parts = [list(fragment) for fragment in fragments] if fragments is not None else [self.parameters]
        if sorted(map(id, self.parameters)) != sorted(id(p) for fragment in parts for p in fragment):
            raise ValueError("the fragments must hold each of the optimizer's parameters once")
        self.every, self.delay, self.mix = every, delay, mix
        self.outer_lr, self.outer_momentum = outer_lr, outer_momentum
        self.fragments = [
            Fragment(some, due, flatten(some), torch.zeros_like(flatten(some)))
            for some, due in zip(parts, fragment_steps(every, len(parts)), strict=True)
        ]

    def after_step(self) -> None:
        for fragment in self.fragments:
            if self.steps >= fragment.due and (self.steps - fragment.due) % self.every == 0:
                self._send(fragment)
            if (
                self.steps >= fragment.due + self.delay
                and (self.steps - fragment.due) % self.every == self.delay
            ):
                self._take_up(fragment)

    def _send(self, fragment: Fragment) -> None:
        fragment.sent = flatten(fragment.parameters) / dist.get_world_size(self.group)
        end = trace.begin("communication", f"average fragment due at {fragment.due}")
        fragment.work = dist.all_reduce(fragment.sent, group=self.group, async_op=True)
        fragment.work.get_future().add_done_callback(end)

    def _take_up(self, fragment: Fragment) -> None:
        fragment.work.wait()
        fragment.work = None
        outer_step(
            fragment.outer, fragment.sent, fragment.momentum, lr=self.outer_lr, beta=self.outer_momentum
        )
        local = flatten(fragment.parameters)
        assign(fragment.parameters, fragment.outer.lerp(local, self.mix))

    def state_dict(self) -> dict[str, Any]:
        """The states of both optimizers.

        Raises:
            RuntimeError: a fragment is on its way, because the last step was less than ``delay`` steps after a send.
        """
        if any(fragment.work for fragment in self.fragments):
            raise RuntimeError("a fragment is on its way: save after the step at which it is taken up")
        outer = [(fragment.outer, fragment.momentum) for fragment in self.fragments]
        return super().state_dict() | {"fragments": outer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for fragment, (outer, momentum) in zip(self.fragments, state_dict["fragments"], strict=True):
            fragment.outer.copy_(outer)
            fragment.momentum.copy_(momentum)
