"""The microbatches of one step, forward and backward: one after the other, or through a pipeline.

Both are called with this rank's inputs, its targets, and ``count``, by which the sum of the losses is divided. Both
return the sum of the losses, undivided; zero where a rank has computed none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.data_parallel.moved_gradient import MovedGradient
from course_lib.parallelize.data_parallel import Replicated
from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.microbatches import LossFunction, cut_batch
from course_lib.pipeline.stages import Stage


class Accumulation:
    """Without a pipeline: gradients add up, and data parallelism sends them beside the last backward.

    Args:
        loss_fn: the sum over the targets.
        computes_loss: False on all tensor-parallel ranks but the first: they compute the same loss once more.
    """

    def __init__(
        self, data: Replicated, loss_fn: LossFunction, microbatches: int, computes_loss: bool
    ) -> None:
        self.data, self.loss_fn, self.microbatches = data, loss_fn, microbatches
        self.computes_loss = computes_loss

    def __call__(self, inputs: Sequence[Tensor], targets: Tensor, count: float) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=targets.device)
        for i, (*own_inputs, own_targets) in enumerate(cut_batch((*inputs, targets), self.microbatches)):
            with self.data.microbatch(last=i == self.microbatches - 1):
                loss = self.loss_fn(self.data.called(*own_inputs), own_targets)
                (loss / count).backward()
            total += loss.detach()
        return total * self.computes_loss


class PipelineRun:
    """Through the stages, as the schedule says.

    Args:
        tied: parameters of this rank of which another pipeline rank has a copy.
        computes_loss: see ``Accumulation``.
    """

    def __init__(self, pipeline: Pipeline, tied: Sequence[nn.Parameter], computes_loss: bool) -> None:
        self.pipeline, self.tied, self.computes_loss = pipeline, tied, computes_loss

    def __call__(self, inputs: Sequence[Tensor], targets: Tensor, count: float) -> Tensor:
        batch = cut_batch((*inputs, targets), self.pipeline.schedule.microbatches)
        # The copies' gradients are summed at the end. Those of an earlier call have been, and must not be once more.
        before = {
            p: p.grad for p in self.tied if p.grad is not None and not isinstance(p.grad, MovedGradient)
        }
        for p in before:
            p.grad = None
        loss = self.pipeline.step(batch, count)
        for p, gradient in before.items():
            p.grad = gradient if p.grad is None else p.grad + gradient
        total = torch.zeros((), dtype=torch.float64, device=targets.device)
        return total if loss is None or not self.computes_loss else total + loss.detach() * count


class Stages(nn.Module):
    """What this rank holds, as one module. Parameters have their names in the whole model."""

    def __init__(self, stages: Mapping[int, Stage]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages.values())

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        seen: set[nn.Parameter] = set()
        for stage in self.stages:
            for name, p in stage.named_parameters():
                if p not in seen:
                    seen.add(p)
                    yield name, p

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        for stage in self.stages:
            yield from stage.named_buffers(*args, **kwargs)
