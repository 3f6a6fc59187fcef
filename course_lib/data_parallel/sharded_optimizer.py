"""The optimizer around a sharded update: its groups, clipping and states. ``ShardedBucket`` holds the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from course_lib.data_parallel import checkpoint
from course_lib.data_parallel.broadcast import broadcast_together
from course_lib.data_parallel.ddp import assign_buckets
from course_lib.data_parallel.flat import storage_bytes
from course_lib.data_parallel.sharded_bucket import ShardedBucket
from course_lib.data_parallel.sharded_gradient import check_elementwise
from course_lib.data_parallel.sharded_muon import ShardedMatrices
from course_lib.one_device.muon import MuonWithAdamW
from course_lib.runtime.gradient_norm import clip_grad_norm
from simulator.ledgers.memory import MemoryBreakdown


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
        self.flats: list[ShardedBucket] = []
        for options in groups:
            flats = [
                ShardedBucket(cut, [self.names[p] for p in cut], name, self.group_of(cut[0]))
                for name, cut in self.cut(options["params"])
            ]
            options["params"] = [flat.updated for flat in flats]
            self.flats += flats
        self.check_trained()
        self.optimizer = optimizer_class(groups, **settings)
        super().__init__(self.optimizer.param_groups, self.optimizer.defaults)
        if isinstance(self.optimizer, MuonWithAdamW):
            self.optimizer.places = ShardedMatrices(self.optimizer, self.flats)
        self._share_with_inner()
        sharded = {p for flat in self.flats for p in flat.parameters}  # each flat has sent its own
        others = [t for t in [*model.parameters(), *model.buffers()] if t not in sharded]
        broadcast_together([t for t in others if self.group_of(t) is group], group)
        # Backward runs from the last parameter to the first, so the flats whose first comes last are done first.
        order = {p: i for i, p in enumerate(model.parameters())}
        self.flats.sort(key=lambda flat: -min(order[p] for p in flat.parameters))
        self.zero_grad()

    def group_of(self, parameter: Tensor) -> ProcessGroup | None:
        """The ranks that have a copy of it."""
        return self.group

    def check_trained(self) -> None:
        if not any(flat.trainable for flat in self.flats):
            raise ValueError("there is nothing to train: no parameter requires a gradient")

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
        held = [(shard.grad.as_subclass(Tensor), 1) for shard in self.shards]
        self.grad_norm = clip_grad_norm(held, self.max_norm or math.inf, self.group, held[0][0].device)

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
