"""ZeRO's flat buffer: some parameters of a model, this rank's shard of them, and the way of their gradients into it."""

from __future__ import annotations

from collections.abc import Generator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from course_lib.data_parallel import checkpoint
from course_lib.data_parallel.flat import FlatParameters
from course_lib.data_parallel.moved_gradient import MovedGradient
from course_lib.data_parallel.sharded_gradient import ShardedGradient


class ShardedBucket(FlatParameters):
    """Some of a model's parameters, which become views into the flat buffer: the model computes as before.

    Attributes:
        parameters: the model's own.
        updated: (shard_size,) the shard, as the parameter that the optimizer updates. A view into ``full``, so that
            updating it changes the model.
    """

    def __init__(
        self, parameters: list[nn.Parameter], names: list[str], name: str, group: ProcessGroup | None
    ) -> None:
        super().__init__([p.detach() for p in parameters], name, group)
        self.parameters, self.names, self.trainable = parameters, names, parameters[0].requires_grad
        self.position = {p: i for i, p in enumerate(parameters)}
        self.placeholders = [MovedGradient.of(p) for p in parameters]
        self.updated = nn.Parameter(self.shard, self.trainable)
        self._point_into_full()
        for p in parameters if self.trainable else []:
            p.register_hook(lambda _, p=p: self._before_gradient(p))

    def _point_into_full(self) -> None:
        for i, p in enumerate(self.parameters):
            p.data = self.view(self.full, i)

    # ---- stage 3: parameters come and go ----------------------------------------------------------------------

    def shard_only(self) -> None:
        """From now on keep nothing but the shard, in memory of its own."""
        self.shard = self.shard.clone()
        self.updated.data = self.shard
        self.reshard()

    def unshard(self) -> None:
        if self.storage.nbytes() == 0:
            super().unshard()
            self._point_into_full()

    def reshard(self) -> None:
        super().reshard()
        nothing = self.full.new_empty(0)
        for p in self.parameters:
            p.data = nothing  # to use it now is an error; the old view would read freed memory

    # ---- gradients --------------------------------------------------------------------------------------------

    def _before_gradient(self, parameter: nn.Parameter) -> None:
        """Autograd is about to add to ``parameter.grad``."""
        if isinstance(parameter.grad, MovedGradient):
            parameter.grad = None
        elif self.position[parameter] in self.moved:  # the model's zero_grad was called, not the optimizer's
            self.drop_gradients()

    def take_gradient(self, parameter: nn.Parameter) -> None:
        """Move ``parameter.grad``, divided by p, to its place in the flat gradient."""
        i = self.position[parameter]
        self.accumulate(i, parameter.grad)
        self.moved.add(i)
        parameter.grad = self.placeholders[i]

    @torch.no_grad()
    def accumulate(self, i: int, gradient: Tensor) -> None:
        """As ``FlatParameters`` does, but the first gradient is written and not added: a buffer of zeros would cost one
        more pass over the memory of all gradients."""
        if self.gradient is None:
            self.gradient = torch.empty_like(self.full)
        if i in self.reached:
            self.view(self.gradient, i).add_(gradient, alpha=1 / self.ranks)
        else:
            torch.div(gradient, self.ranks, out=self.view(self.gradient, i))
        self.reached.add(i)

    def _complete_gradient(self) -> Tensor:
        """The flat gradient, zero where no backward has reached a parameter, and in the padding."""
        if self.gradient is None:
            return torch.zeros_like(self.full)
        for i in set(range(len(self.names))) - self.reached:
            self.view(self.gradient, i).zero_()
        self.gradient[self.starts[-1] :].zero_()
        return self.gradient

    @torch.no_grad()
    def reduction(self, *, in_place: bool) -> Generator[None]:
        """Average the flat gradient over the ranks; what no backward has reached is zero. Yields once, as ``average``.

        Args:
            in_place: put this rank's shard of the mean into the gradient's own buffer, which then stays.
        """
        gradient = self._complete_gradient()
        own = self.shard_of(gradient)
        if self.updated.grad is not None:
            # From earlier backwards, and already a mean: only this rank adds it, so it is in the sum once.
            own.add_(self.updated.grad)
        self.gradient, self.reached = None, set()
        averaging = self.average(gradient, own if in_place else None)
        del gradient, own
        mean = yield from averaging
        self.updated.grad = ShardedGradient.of(mean, self.group)

    def drop_gradients(self) -> None:
        self.gradient = self.updated.grad = None
        self.reducing, self.reached, self.moved = [], set(), set()
        for p in self.parameters:
            p.grad = None

    # ---- what checkpoints and ledgers ask ---------------------------------------------------------------------

    @property
    def in_model(self) -> list[nn.Parameter]:
        """What ``model.parameters()`` lists for each parameter."""
        return self.parameters

    def updated_parameters(self) -> list[tuple[nn.Parameter, list[str]]]:
        """What the optimizer updates, and the names of the parameters that this covers."""
        return [(self.updated, self.names)]

    def updated_places(self) -> list[tuple[nn.Parameter, slice]]:
        """For each parameter what the optimizer updates in its place, and which elements of it."""
        return [(self.updated, slice(*self.extent(i))) for i in range(len(self.names))]

    def states(self, optimizer: Optimizer) -> list[dict[str, Any]]:
        """The optimizer's states of each parameter on this rank."""
        state = optimizer.state.get(self.updated, {})
        parts = [slice(*self.extent(i)) for i in range(len(self.names))]
        return [{k: v if k in checkpoint.ONE_NUMBER else v[part] for k, v in state.items()} for part in parts]

    def shard_states(self, full: list[dict[str, Any]]) -> dict[nn.Parameter, dict[str, Any]]:
        """From the full optimizer states of each parameter, the states of the shard."""
        shard = {}
        for key in full[0].keys() | full[-1].keys():
            values = [state.get(key) for state in full]
            if key not in checkpoint.ONE_NUMBER and all(isinstance(value, Tensor) for value in values):
                shard[key] = self.join([self.part(i, value) for i, value in enumerate(values)])
            elif all(value is not None and value == values[0] for value in values):
                shard[key] = deepcopy(values[0])
            else:
                raise ValueError(
                    f"{self.names[0]} and {self.names[-1]} share a shard, so {key!r} must be in the state of all "
                    "parameters between them, and one number the same"
                )
        return {self.updated: shard}

    def tensors(self) -> tuple[list[Any], list[Any]]:
        """Of parameters, and of gradients, what is alive now."""
        own = [p.grad for p in self.parameters if not isinstance(p.grad, MovedGradient)]
        return [self.full, self.shard, *self.parameters], [
            self.gradient,
            *self.reducing,
            self.updated.grad,
            *own,
        ]
