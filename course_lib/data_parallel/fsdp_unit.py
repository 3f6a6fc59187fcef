"""What FSDP moves: the parameters of a unit, unsharded while its module computes and sharded while it does not.

Modules hold one form or the other, so that code which reads ``module.weight`` finds a full weight in forward and in
backward, and ``model.parameters()`` gives an optimizer the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from course_lib.data_parallel.checkpoint import ONE_NUMBER
from course_lib.data_parallel.flat import FlatParameters, storage_bytes
from course_lib.data_parallel.fsdp_units import ROOT
from course_lib.data_parallel.sharded_gradient import ShardedGradient
from course_lib.runtime import trace


@dataclass(eq=False)
class ShardedParameter:
    """One parameter in its two forms. Modules hold the unsharded form while they compute, else the sharded one.

    Attributes:
        name: its first name in the model.
        owners: the modules that use it, each with its own name for it; several where it is tied.
        unsharded: in the parameter's shape, a view into ``full``. Before sharding: the model's own parameter.
        sharded: (1, …, n) with as many dimensions as the parameter; its n >= 0 elements are a view into ``shard``.
            This is the parameter that an optimizer updates.
    """

    name: str
    owners: list[tuple[nn.Module, str]]
    unsharded: nn.Parameter
    sharded: nn.Parameter | None = None


class ShardedFlat(FlatParameters):
    """A flat buffer whose parameters the modules of a unit hold in one form or in the other."""

    def __init__(
        self, name: str, parameters: list[ShardedParameter], group: ProcessGroup, device: torch.device
    ) -> None:
        trainable = parameters[0].unsharded.requires_grad
        label = name if trainable else f"{name} (frozen)"
        super().__init__([p.unsharded.detach() for p in parameters], label, group, device)
        self.parameters, self.trainable = parameters, trainable
        self.shard = self.resting_shard()
        self.full = self.buffer()
        for i, p in enumerate(parameters):
            low, high = self.extent(i)
            dims = [1] * (p.unsharded.dim() - 1)  # a matrix's shard is (1, n), so that p.dim() >= 2 holds
            p.sharded = nn.Parameter(self.shard[low:high].view(*dims, high - low), self.trainable)
            p.unsharded = nn.Parameter(self.view(self.full, i), self.trainable)
        self.reshard()

    def resting_shard(self) -> Tensor:
        """The shard in memory of its own, because that of ``full`` is freed."""
        return self.shard.clone()

    def buffer(self) -> Tensor:
        """What parameters are gathered into: (p * shard_size,)."""
        return torch.empty_like(self.full)

    def unshard(self) -> None:
        super().unshard()
        self._install("unsharded")

    def reshard(self) -> None:
        super().reshard()
        self._install("sharded")

    def _install(self, form: str) -> None:
        for p in self.parameters:
            for module, attribute in p.owners:
                module._parameters[attribute] = getattr(p, form)

    def take_gradients(self) -> None:
        """Move the gradients of the unsharded parameters to the flat gradient."""
        for i, p in enumerate(self.parameters):
            if p.unsharded.grad is not None:
                self.accumulate(i, p.unsharded.grad)
                p.unsharded.grad = None

    @torch.no_grad()
    def reduction(self) -> Generator[None]:
        """Average the flat gradient, and give each sharded parameter its elements of the mean.

        A parameter that no rank has used must stay without a gradient, on every rank, because momentum and weight
        decay would otherwise move it. The sum itself tells: an unused parameter contributes -0.0 and a used one never
        does (``accumulate`` adds to +0.0), and a sum is -0.0 only where every rank has contributed -0.0.
        """
        gradient, reached = self.zero_gradient() if self.gradient is None else self.gradient, self.reached
        for i in set(range(len(self.parameters))) - reached:
            self.view(gradient, i).fill_(-0.0)
        self.gradient, self.reached = None, set()
        averaging = self.average(gradient)
        del gradient
        mean = yield from averaging
        for i, p in enumerate(self.parameters):
            elements = mean[slice(*self.extent(i))].view_as(p.sharded)
            if p.sharded.grad is not None:
                p.sharded.grad += elements
            elif i in reached or not elements.numel() or not ((elements == 0) & elements.signbit()).all():
                p.sharded.grad = ShardedGradient.of(elements, self.group)

    def drop_gradients(self) -> None:
        """Forget what a backward that failed has left."""
        self.gradient, self.reducing, self.reached = None, [], set()
        for p in self.parameters:
            p.unsharded.grad = None

    # ---- what checkpoints and ledgers ask -----------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        return [p.name for p in self.parameters]

    @property
    def in_model(self) -> list[nn.Parameter]:
        """What ``model.parameters()`` lists for each parameter between forward and backward."""
        return [p.sharded for p in self.parameters]

    def states(self, optimizer: Optimizer) -> list[dict[str, Any]]:
        """The optimizer's states of each parameter on this rank; nothing where this rank owns no element."""
        return [optimizer.state.get(p.sharded, {}) if p.sharded.numel() else {} for p in self.parameters]

    def updated_parameters(self) -> list[tuple[nn.Parameter, list[str]]]:
        """What an optimizer updates, and the names of the parameters that this covers."""
        return [(p.sharded, [p.name]) for p in self.parameters]

    def updated_places(self) -> list[tuple[nn.Parameter, slice]]:
        """For each parameter what an optimizer updates in its place, and which elements of it."""
        return [(p.sharded, slice(None)) for p in self.parameters]

    def shard_states(self, full: list[dict[str, Any]]) -> dict[nn.Parameter, dict[str, Any]]:
        """From the full optimizer states of each parameter, this rank's part."""
        return {
            p.sharded: {
                key: deepcopy(value) if key in ONE_NUMBER else self.part(i, value).clone().view_as(p.sharded)
                for key, value in state.items()
            }
            for i, (p, state) in enumerate(zip(self.parameters, full, strict=True))
        }

    def memory(self) -> tuple[int, int]:
        """Bytes of parameters, and of gradients, alive now."""
        parameters = [self.full, self.shard, *(self.gathering or ())[1:]]
        gradients = [p.unsharded.grad for p in self.parameters] + [p.sharded.grad for p in self.parameters]
        return storage_bytes(parameters), storage_bytes([self.gradient, *self.reducing, *gradients])


class Unit:
    """A module whose parameters are unsharded together: one flat buffer for each dtype, frozen parameters apart."""

    def __init__(
        self, name: str, module: nn.Module, flats: list[ShardedFlat], reshard_after_forward: bool
    ) -> None:
        self.name, self.module, self.flats = name, module, flats
        self.reshard_after_forward, self.reshard_after_backward = reshard_after_forward, True
        self.synchronising = True  # else gradients accumulate without being reduced
        self.trainable = [p for flat in flats if flat.trainable for p in flat.parameters]
        self.frozen = any(not flat.trainable for flat in flats)
        self.end_span: Callable[..., None] = lambda: None
        self.expect_backward()
        self.due = False  # it has run forward, or begun backward, and its gradients are not yet reduced

    def hook(self, schedule: Any) -> None:
        """Let ``schedule`` (an ``FSDP``) say when this unit is unsharded, resharded and reduced."""
        self.schedule = schedule
        self.module.register_forward_pre_hook(
            lambda _, args, kwargs: self.schedule.before_forward(self, args, kwargs),
            with_kwargs=True,
            prepend=True,  # the hooks of others, such as side tuning's, use the weights
        )
        self.module.register_forward_hook(
            lambda _, args, output: self.schedule.after_forward(self, output), always_call=True
        )
        for p in self.trainable:
            p.unsharded.register_post_accumulate_grad_hook(lambda _: self.schedule.gradient_ready(self))

    def expect_backward(self) -> None:
        self.missing = len(self.trainable)  # parameters that this backward has yet to reach
        self.uses = 0  # forwards whose backward is not over

    def gather(self) -> None:
        for flat in self.flats:
            flat.gather()

    def unshard(self) -> None:
        self.gather()
        for flat in self.flats:
            flat.unshard()

    def reshard(self) -> None:
        for flat in self.flats:
            flat.reshard()

    def rename(self, inside: str) -> None:
        """The unit's names as those in a larger model, in which its own model is called ``inside``."""
        self.name = f"{inside}.{self.name}".strip(".")
        for flat in self.flats:
            flat.name = self.name if flat.trainable else f"{self.name} (frozen)"
            for p in flat.parameters:
                p.name = f"{inside}.{p.name}".strip(".")

    def versions(self) -> list[int]:
        """Of the sharded parameters; PyTorch counts changes in place, such as an optimizer's."""
        return [p.sharded._version for flat in self.flats for p in flat.parameters]

    def begin_span(self, what: str) -> None:
        if self.name != ROOT:  # the root's computation encloses all others
            self.end_span = trace.begin("compute", f"{what} {self.name}")
