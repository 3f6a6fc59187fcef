"""How often a classifier is right on samples that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.parallelize import ParallelModel
from course_lib.parallelize.evaluate import evaluate

IGNORED = -100


def accuracy(model: ParallelModel, test: Sequence[Tensor], batch: int) -> float:
    """From 0 to 1, the same on every rank. The last batch is filled up with samples that do not count."""
    *inputs, targets = test
    rows, right = len(targets), 0.0
    whole = -(-rows // batch) * batch
    inputs = [torch.cat((t, t[:1].expand(whole - rows, *t.shape[1:]))) for t in inputs]
    targets = F.pad(targets, (0, whole - rows), value=IGNORED)
    own = batch // model.data_ranks
    for start in range(model.data_rank * own, whole, batch):
        right += evaluate(model, count_right, *(t[start : start + own].long() for t in (*inputs, targets)))
    return right / rows


def count_right(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.argmax(-1) == targets).sum()
