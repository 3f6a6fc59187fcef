"""Exercise 06.3: the step that the learner mends."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.data_parallel.flat import all_gather, reduce_scatter


def faulty_step(
    weights: Tensor,
    gradient: Tensor,
    state: dict[str, Any],
    lr: float = 0.1,
    momentum: float = 0.9,
    max_norm: float = 1.0,
) -> None:
    p, me = dist.get_world_size(), dist.get_rank()
    length = len(weights) // p
    mine = weights[me * length : (me + 1) * length].clone()
    mean = torch.empty(length)
    reduce_scatter(mean, gradient)

    norm = mean.norm().item()
    if norm > max_norm:
        mean *= max_norm / norm

    if "momentum" not in state:
        state["momentum"] = mean.clone()
    state["momentum"] = momentum * state["momentum"] + mean
    mine -= lr * state["momentum"]
    all_gather(weights, mine)
