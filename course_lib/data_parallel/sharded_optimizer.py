"""The optimizer around a sharded update: its groups, its states, and the flat buffers of the model's parameters."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from course_lib.data_parallel import checkpoint
from course_lib.data_parallel.broadcast import broadcast_buffers
from course_lib.data_parallel.ddp import assign_buckets
from course_lib.data_parallel.flat import FlatParameters, storage_bytes
from course_lib.data_parallel.moved_gradient import MovedGradient
from course_lib.data_parallel.sharded_gradient import ShardedGradient, check_elementwise, clip_grad_norm
from simulator.ledgers.memory import MemoryBreakdown


class Bucket(FlatParameters):
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
            p.data = nothing  # what uses the parameter now meets a wrong shape, and not freed memory

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
        if (
            self.updated.grad is not None
        ):  # the mean of an earlier backward, which the sum over the ranks has once
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


class ShardedOptimizer(Optimizer):
    """A ``torch.optim.Optimizer`` whose parameters are the shards of this rank.

    Learning-rate schedulers, closures, ``GradScaler`` and ``clip_grad_norm_`` on its ``param_groups`` work as on one
    device. The arguments are those of ``zero.ShardedUpdate``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: type[Optimizer],
        *,
        parameters: Iterable[Any] | None = None,
        group: ProcessGroup | None = None,
        bucket_cap_mb: float = float("inf"),
        max_norm: float | None = None,
        **settings: Any,
    ) -> None:
        check_elementwise(optimizer_class)
        if not bucket_cap_mb > 0:
            raise ValueError(f"bucket_cap_mb must be positive, not {bucket_cap_mb!r}")
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm must be positive, or None to clip nothing, not {max_norm!r}")
        self.model, self.group, self.bucket_cap_mb, self.max_norm = model, group, bucket_cap_mb, max_norm
        self.grad_norm: Tensor | None = None
        self.names = {p: name for name, p in model.named_parameters()}
        groups = _param_groups(model.parameters() if parameters is None else parameters)
        for p in (p for group in groups for p in group["params"]):
            if p not in self.names:
                raise ValueError(f"a parameter of shape {tuple(p.shape)} is not one of the model's")
        self.group_names = [[self.names[p] for p in group["params"]] for group in groups]
        self.flats: list[Bucket] = []
        for options in groups:
            flats = [
                Bucket(cut, [self.names[p] for p in cut], name, group)
                for name, cut in self.cut(options["params"])
            ]
            options["params"] = [flat.updated for flat in flats]
            self.flats += flats
        if not any(flat.trainable for flat in self.flats):
            raise ValueError("there is nothing to train: no parameter requires a gradient")
        self.optimizer = optimizer_class(groups, **settings)
        super().__init__(self.optimizer.param_groups, self.optimizer.defaults)
        self._share_with_inner()
        broadcast_buffers(model, group)
        # Backward runs from the last parameter to the first, so the flats whose first comes last are done first.
        order = {p: i for i, p in enumerate(model.parameters())}
        self.flats.sort(key=lambda flat: -min(order[p] for p in flat.parameters))
        self.zero_grad()

    def _share_with_inner(self) -> None:
        """One list of groups, so that a scheduler that sets a learning rate here sets it where the update is made."""
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state

    def cut(self, parameters: list[nn.Parameter]) -> Iterator[tuple[str, list[nn.Parameter]]]:
        """What of one parameter group goes into each flat buffer: here DDP's buckets, without frozen parameters."""
        trained = [p for p in parameters if p.requires_grad]
        for i, bucket in enumerate(assign_buckets(trained, self.bucket_cap_mb * 2**20)):
            yield f"bucket {len(self.flats) + i}", bucket

    @property
    def shards(self) -> list[nn.Parameter]:
        """The shards that have a gradient."""
        return [flat.updated for flat in self.flats if flat.updated.grad is not None]

    def loss_of(self, closure: Callable[[], Any] | None) -> Any:
        """What ``step(closure)`` returns: the closure computes the loss and calls backward."""
        if closure is not None:
            with torch.enable_grad():
                return closure()
        return None

    def clip(self) -> None:
        """Clip to ``max_norm``, and note the norm over all parameters as ``grad_norm``."""
        gradients = [shard.grad for shard in self.shards]
        self.grad_norm = clip_grad_norm(gradients, self.max_norm, self.group, gradients[0].device)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, whatever ``set_to_none`` says: a shard without a gradient takes no memory."""
        for flat in self.flats:
            flat.drop_gradients()

    def memory(self) -> MemoryBreakdown:
        """Bytes of model states alive on this rank now; gradients are there between backward and ``step``."""
        of_flats = [flat.tensors() for flat in self.flats]
        parameters = [t for tensors, _ in of_flats for t in tensors]
        gradients = [t for _, tensors in of_flats for t in tensors]
        states = [value for state in self.state.values() for value in state.values()]
        parameters += self.model.parameters()
        return MemoryBreakdown(storage_bytes(parameters), storage_bytes(gradients), storage_bytes(states))

    # ---- state ------------------------------------------------------------------------------------------------

    def model_state_dict(self) -> dict[str, Tensor]:
        """The full model by name, on every rank, also at stage 3; all ranks call it."""
        return checkpoint.full_parameters(self.model, self.flats)

    def load_model_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what ``model_state_dict`` gave, at any stage on any number of ranks."""
        checkpoint.load_full_state(self.model, self.flats, state)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer as one device would have it; an ordinary optimizer can load it. All ranks call it."""
        return checkpoint.full_optimizer_state(self.flats, self.optimizer, self.group_names)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave, at any stage on any number of ranks."""
        checkpoint.load_full_state(
            self.model, self.flats, None, self.optimizer, state, groups=self.group_names
        )
        self._share_with_inner()


def _param_groups(parameters: Iterable[Any]) -> list[dict[str, Any]]:
    """What an optimizer accepts, as groups with their own settings."""
    parameters = list(parameters)
    groups = parameters if parameters and isinstance(parameters[0], dict) else [{"params": parameters}]
    return [
        {**group, "params": [p] if isinstance(p := group["params"], Tensor) else list(p)} for group in groups
    ]
