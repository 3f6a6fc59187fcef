"""The update of data parallelism, sharded over the replicas (arXiv:2004.13336): ZeRO stage 1 at its simplest.

Under plain data parallelism p ranks keep the same optimizer states and compute the same update. But an all-reduce
is a reduce-scatter followed by an all-gather. The update moves in between, where every rank has just the part of the
gradient that it needs for its part of the parameters: 1/p of the states and of the work, for the same traffic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from course_lib.data_parallel.flat import FlatParameters, all_gather, reduce_scatter

NOT_ELEMENTWISE = ("Adafactor", "LBFGS", "Muon", "SparseAdam")


class ShardedUpdate:
    """The obvious way: backward first, then reduce-scatter, update, all-gather, once for the whole model."""

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: type[Optimizer],
        *,
        group: ProcessGroup | None = None,
        **settings: Any,
    ) -> None:
        check_elementwise(optimizer_class)
        self.flat = FlatParameters((p for p in model.parameters() if p.requires_grad), "model", group)
        self.optimizer = optimizer_class([self.flat.shard], **settings)

    @torch.no_grad()
    def step(self) -> None:
        flat = self.flat
        for parameter in flat.parameters:
            if parameter.grad is not None:
                flat.take_gradient(parameter)
        mean = torch.empty_like(flat.shard)
        reduce_scatter(mean, flat.complete_gradient(), group=flat.group)
        flat.shard.grad = mean
        self.optimizer.step()
        all_gather(flat.full, flat.shard, group=flat.group)
        self.zero_grad()

    def zero_grad(self) -> None:
        self.flat.gradient = self.flat.shard.grad = None


def check_elementwise(optimizer_class: type[Optimizer]) -> None:
    if optimizer_class.__name__ in NOT_ELEMENTWISE:
        raise ValueError(
            f"{optimizer_class.__name__} does not update each element by itself, and a shard is a flat piece of "
            "many tensors: use an elementwise optimizer such as Adam, AdamW or SGD"
        )


def param_groups(parameters: Iterable[Any]) -> list[dict[str, Any]]:
    """What an optimizer accepts, as groups with their own settings."""
    parameters = list(parameters)
    groups = parameters if parameters and isinstance(parameters[0], dict) else [{"params": parameters}]
    return [
        {**group, "params": [p] if isinstance(p := group["params"], Tensor) else list(p)} for group in groups
    ]
