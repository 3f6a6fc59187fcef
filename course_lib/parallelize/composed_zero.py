"""ZeRO 1 and 2 beside other parallelisms: what a rank shards over the data axis is itself a part of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from course_lib.data_parallel.moved_gradient import MovedGradient
from course_lib.data_parallel.zero import ShardedUpdate, Zero1, Zero2


class ComposedZero(ShardedUpdate):
    """Stands before one of ZeRO's classes, and changes what would be wrong where a rank has a part of the model.

    Args:
        kind_of: for a parameter's name how many ranks outside the data axis hold the same elements. Parameters of one
            kind share flat buffers, so that the norm of a buffer can be weighted.
        groups: for parameters of which only some of the data-parallel ranks have a copy, those ranks.

    Attributes:
        clip_whole: clips to a norm over all ranks of the plan; ``max_norm`` is given to it in ``step``.
    """

    clip_whole: Callable[[float], Tensor]

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: type[Optimizer],
        *,
        kind_of: Callable[[str], int],
        groups: Mapping[Tensor, ProcessGroup],
        **settings: Any,
    ) -> None:
        self.kind_of, self.groups = kind_of, groups
        super().__init__(model, optimizer_class, **settings)

    def group_of(self, parameter: Tensor) -> ProcessGroup | None:
        return self.groups.get(parameter, self.group)

    def cut(self, parameters: list[nn.Parameter]) -> Iterator[tuple[str, list[nn.Parameter]]]:
        kinds: dict[Any, list[nn.Parameter]] = {}
        for p in parameters:
            kinds.setdefault((self.kind_of(self.names[p]), self.group_of(p)), []).append(p)
        for same in kinds.values():
            yield from super().cut(same)

    def check_trained(self) -> None:
        """A pipeline's rank may hold frozen layers alone; ``check_fits`` has looked at the whole model."""

    def average_after_backward(self) -> None:
        """Called once after the last backward, before gradients are looked at."""

    def clip(self) -> None:
        if self.max_norm is not None:
            self.grad_norm = self.clip_whole(self.max_norm)


class ComposedUpdate(ComposedZero):
    """Stage 1 without hooks, for a pipeline: a tied gradient is complete only at the end of its schedule."""

    @torch.no_grad()
    def average_after_backward(self) -> None:
        for flat in self.flats:
            for p in flat.parameters:
                if p.grad is not None and not isinstance(p.grad, MovedGradient):
                    flat.take_gradient(p)
            for _ in flat.reduction(in_place=True):
                pass  # the reduce-scatter is under way
            flat.moved.clear()  # the next call has several backwards again before its gradients are moved

    def average_gradients(self) -> None:
        """``average_after_backward`` has done it."""


class ComposedZero1(ComposedZero, Zero1):
    pass


class ComposedZero2(ComposedZero, Zero2):
    pass


COMPOSED = {1: ComposedZero1, 2: ComposedZero2}
