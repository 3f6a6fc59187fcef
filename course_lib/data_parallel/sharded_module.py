"""What can be asked of a model that FSDP has sharded: parameters, state, gradients, norm, memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from course_lib.data_parallel.checkpoint import (
    full_optimizer_state,
    full_parameters,
    group_names,
    load_full_state,
    named_groups,
)
from course_lib.data_parallel.flat import storage_bytes
from course_lib.data_parallel.fsdp_unit import ShardedFlat, Unit
from course_lib.runtime.gradient_norm import clip_grad_norm
from simulator.ledgers.memory import MemoryBreakdown


class ShardedModule(nn.Module):
    """A wrapper that works as the module in it works, with the module's names.

    Attributes:
        module: the model, with its parameters sharded.
        units: what is unsharded together; the root is the last.
    """

    module: nn.Module
    mesh: DeviceMesh
    device: torch.device
    units: list[Unit]

    @property
    def flats(self) -> list[ShardedFlat]:
        return [flat for unit in self.units for flat in unit.flats]

    # ---- seams for FullyShardedDataParallel -------------------------------------------------------------------

    def checked(self, mesh: DeviceMesh) -> DeviceMesh:
        if mesh.ndim != 1:
            raise ValueError(
                f"a mesh with axes {mesh.mesh_dim_names} was given; FSDP takes one axis, of shards "
                "(FullyShardedDataParallel takes two, of copies and shards)"
            )
        return mesh

    @property
    def shard_group(self) -> ProcessGroup:
        return self.mesh.get_group(self.mesh.ndim - 1)

    def left_out(self) -> Iterable[nn.Parameter]:
        """Parameters that are not sharded."""
        return ()

    def share_buffers(self) -> None:
        """Every rank starts with the buffers of the mesh's first rank."""
        for buffer in self.module.buffers():
            buffer.data = buffer.to(self.device)
            for axis in reversed(range(self.mesh.ndim)):
                dist.broadcast(buffer, group=self.mesh.get_group(axis), group_src=0)

    # ---- as a module ------------------------------------------------------------------------------------------

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The sharded parameters, under the model's own names, also while units are unsharded."""
        sharded = {p.unsharded: p.sharded for flat in self.flats for p in flat.parameters}
        for name, p in self.module.named_parameters(*args, **kwargs):
            yield name, sharded.get(p, p)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        return self.module.named_buffers(*args, **kwargs)

    def state_dict(self) -> dict[str, Tensor]:
        """Names and full tensors of the model, in the CPU's memory, on every rank. All ranks call it.

        The model on one device takes it with ``load_state_dict``; so does a sharded one, on any number of ranks.
        """
        self.reshard()
        return full_parameters(self.module, self.flats)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take this rank's shards of what ``state_dict`` gave, here or in a run of another size.

        Raises:
            ValueError: names or shapes are others than this model's; nothing is changed.
        """
        self.reshard()
        load_full_state(self.module, self.flats, state)

    def optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer as one device would have it, by the names of the parameters; see ``checkpoint``."""
        return full_optimizer_state(self.flats, optimizer)

    def optimizer_groups(self, optimizer: Optimizer) -> list[dict[str, Any]]:
        """The settings of the optimizer's groups, with the names of the parameters."""
        return named_groups(optimizer, group_names(self.flats, optimizer))

    def load_optimizer_state_dict(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Take this rank's shards of what ``optimizer_state_dict`` gave.

        Raises:
            ValueError: the parameter groups hold other names; nothing is changed.
        """
        load_full_state(self.module, self.flats, None, optimizer, state)

    def gradients(self) -> dict[str, Tensor | None]:
        """The full averaged gradient of each parameter by its name, gathered as ``state_dict`` gathers weights; None
        where a parameter has no gradient. All ranks call it."""
        full: dict[str, Tensor | None] = {}
        for flat in self.flats:
            has = torch.tensor(
                [p.grad is not None and p.numel() > 0 for p in flat.in_model], device=self.device
            )
            dist.all_reduce(has := has.int(), dist.ReduceOp.MAX, group=self.shard_group)
            if any(has):
                shards = [torch.zeros_like(p) if p.grad is None else p.grad for p in flat.in_model]
                full |= zip(flat.names, flat.collect(flat.join(shards)), strict=True)
            full |= {name: None for name, one in zip(flat.names, has.tolist(), strict=True) if not one}
        return {name: full[name] for name, _ in self.named_parameters() if name in full}

    # ---- around the optimizer's step --------------------------------------------------------------------------

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float = math.inf) -> Tensor:
        """Scale the gradients so that their norm, over all parameters and shards, is at most ``max_norm``.

        ``torch.nn.utils.clip_grad_norm_`` does the same; this one adds up in float64, and refuses.

        Returns:
            The norm as it was, in float64. All ranks call it.

        Raises:
            ValueError: the norm is not finite; every rank raises it, and nothing is changed.
        """
        shards, p = {p for flat in self.flats for p in flat.in_model}, dist.get_world_size(self.shard_group)
        trained = [w for w in self.parameters() if w.grad is not None]
        held = [(w.grad.as_subclass(Tensor), 1 if w in shards else p) for w in trained]
        return clip_grad_norm(held, max_norm, self.shard_group, self.device)

    def memory(self, optimizer: Optimizer | None = None) -> MemoryBreakdown:
        """Bytes of model states alive on this rank now, those that are offloaded included."""
        of_optimizer = optimizer.state.values() if optimizer else ()
        parameters, gradients = map(sum, zip(*(flat.memory() for flat in self.flats), strict=True))
        states = storage_bytes(value for state in of_optimizer for value in state.values())
        return MemoryBreakdown(parameters, gradients, states)
