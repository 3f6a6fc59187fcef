"""A score of what a parallel model computes, without gradients."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.parallelize.parallel_model import ParallelModel
from course_lib.pipeline.microbatches import LossFunction, cut_batch


@torch.no_grad()
def evaluate(model: ParallelModel, score: LossFunction, *batch: Tensor) -> float:
    """The sum of ``score(outputs, targets)`` over all ranks; every rank gets it. Outputs are whole, or cut by words.

    Args:
        batch: as for ``model.forward_backward``.
    """
    *inputs, targets = model.own(*batch)
    total = torch.zeros((), dtype=torch.float64, device=targets.device)
    model.eval()
    if (pipeline := getattr(model.run, "pipeline", None)) is None:
        found = score(model.data.called(*inputs), targets)
    else:
        trained, pipeline.loss_fn = pipeline.loss_fn, score
        try:
            found = pipeline.evaluate(cut_batch((*inputs, targets), pipeline.schedule.microbatches), 1)
        finally:
            pipeline.loss_fn = trained
    model.train()
    if found is not None and model.run.computes_loss:
        total += found
    dist.all_reduce(total)
    return float(total)
