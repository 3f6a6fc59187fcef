"""Pipeline parallelism the naive way: a microbatch goes through all stages and back before the next one enters.

So one rank computes while all others wait. ``executor.py`` has several microbatches under way at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.pipeline.messages import receive_tensors, send_tensors
from course_lib.pipeline.microbatches import (
    Batch,
    LossFunction,
    checked_loss,
    count_tokens,
    sum_cross_entropy,
)
from course_lib.pipeline.stage_modules import StageModules
from course_lib.pipeline.stages import as_tuple, gradients_of, one_or_all
from course_lib.pipeline.tied import TiedGradients
from course_lib.runtime import trace


class NaivePipeline(StageModules):
    """One microbatch at a time, and every message is waited for. Each rank holds one stage.

    Args:
        stages: this rank's stage, by its number.
        mesh: the ranks, one axis.
        loss_fn: ``(output, targets)`` to the sum of the losses.
    """

    def __init__(
        self, stages: Mapping[int, nn.Module], mesh: DeviceMesh, loss_fn: LossFunction = sum_cross_entropy
    ) -> None:
        super().__init__(stages)
        self.rank, self.last, self.group = mesh.get_local_rank(), mesh.size() - 1, mesh.get_group()
        self.loss_fn, self.mesh = checked_loss(loss_fn), mesh
        self.tied = TiedGradients(self.modules, mesh, rank_of=lambda stage: stage)
        if list(stages) != [self.rank]:
            raise ValueError(f"rank {self.rank} must hold the stage {self.rank} alone, not {list(stages)}")

    def step(self, microbatches: Sequence[Batch], tokens: float | None = None) -> Tensor | None:
        """Forward and backward of all microbatches; see ``executor.Pipeline.step``."""
        if tokens is None and self.rank == self.last:
            tokens = count_tokens(microbatches)
        self.loss = None
        with self.tied.of_step():
            for i, microbatch in enumerate(microbatches):
                self.forward_and_backward(i, microbatch, tokens)
        return self.loss

    def forward_and_backward(self, i: int, microbatch: Batch, tokens: float | None) -> None:
        *inputs, targets = microbatch
        if self.rank > 0:
            inputs = receive_tensors(self.rank - 1, self.group)
        with trace.span("compute", f"F{i}"):
            outputs = as_tuple(self.modules[self.rank](*inputs))
        if self.rank < self.last:
            send_tensors(outputs, self.rank + 1, self.group)
            outputs = [t for t in outputs if t.requires_grad]
            gradients = receive_tensors(self.rank + 1, self.group)
        else:
            outputs = [self.loss_fn(one_or_all(outputs), targets) / tokens]
            gradients = [torch.ones_like(outputs[0])]
            self.loss = outputs[0].detach() + (0 if self.loss is None else self.loss)
        with trace.span("compute", f"B{i}"):
            if outputs:
                torch.autograd.backward(outputs, gradients)
        if self.rank > 0:
            send_tensors(gradients_of(inputs), self.rank - 1, self.group)
