"""How the data-parallel ranks keep their copies equal: by a plan's ``zero``, DDP, ZeRO 1 and 2, or FSDP, behind one
interface, so that ``ParallelModel`` need not know which.

``module`` is what this rank holds of the model after tensor and pipeline parallelism: "whole" here means whole as far
as data parallelism is concerned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from course_lib.compression.hook import CommHook
from course_lib.data_parallel.checkpoint import load_full_state, named_groups
from course_lib.data_parallel.ddp import DDP, FlatDDP
from course_lib.data_parallel.flat import storage_bytes
from course_lib.data_parallel.fully_sharded import FullyShardedDataParallel, MixedPrecision
from course_lib.data_parallel.sharded_muon import ShardedMatrices
from course_lib.data_parallel.zero import Zero1
from course_lib.models.anatomy import LAYERS
from course_lib.models.names import matching
from course_lib.one_device.muon import MuonWithAdamW, muon_groups
from course_lib.parallelize.composed_zero import COMPOSED, ComposedUpdate, ComposedZero
from simulator.inputs.plan import Plan
from simulator.ledgers.memory import MemoryBreakdown


def param_groups(
    named: Iterable[tuple[str, nn.Parameter]], optimizer_class: type[Optimizer]
) -> list[dict[str, Any]]:
    """Of what is trained: one group, as under every plan, or Muon's two."""
    trained = [(name, p) for name, p in named if p.requires_grad]
    if issubclass(optimizer_class, MuonWithAdamW):
        return muon_groups(trained)
    return [{"params": [p for _, p in trained]}]


@dataclass
class Part:
    """What the optimizer updates as one parameter on this rank.

    Attributes:
        names: of the model's parameters that it covers.
        parameter: all of a parameter, or this rank's shard; its ``.grad`` is averaged over the data-parallel ranks.
        copies: data-parallel ranks that hold the same elements.
    """

    names: list[str]
    parameter: nn.Parameter
    copies: int


class Replicated:
    """Zero 0: each rank has all of ``module``. Gradients are averaged while the last backward runs, or after it.

    Args:
        groups: for parameters of which only some of the ranks have a copy (experts), those ranks.
        comm_hook: how DDP sends a bucket of gradients; None: by an all-reduce.
    """

    def __init__(
        self,
        module: nn.Module,
        plan: Plan,
        mesh: DeviceMesh,
        groups: Mapping[Tensor, ProcessGroup],
        comm_hook: CommHook | None = None,
    ) -> None:
        self.module, self.copies, self.groups = module, mesh.size(), groups
        self.called: nn.Module = module
        if mesh.size() > 1 and any(p.requires_grad for p in module.parameters()):
            # Each microbatch of a pipeline has its backward while others are in their forward: DDP's hooks expect one
            # after the other. So there all gradients are averaged at the end, in one message.
            beside_backward = plan.pp == 1 and "gradients" in plan.overlap
            if beside_backward:
                self.called = DDP(module, group=mesh.get_group(), comm_hook=comm_hook, groups=groups)
            else:
                self.called = FlatDDP(module, mesh.get_group(), groups)

    def make_optimizer(self, optimizer_class: type[Optimizer], settings: dict[str, Any]) -> Optimizer:
        # PyTorch refuses an empty list, but no empty group.
        return optimizer_class(param_groups(self.module.named_parameters(), optimizer_class), **settings)

    def microbatch(self, last: bool) -> AbstractContextManager[Any]:
        return self.called.no_sync() if isinstance(self.called, DDP) and not last else nullcontext()

    def average(self) -> None:
        """After the last backward: what has not been averaged while it ran."""
        if isinstance(self.called, FlatDDP):
            self.called.average_gradients()

    def parts(self) -> Iterator[Part]:
        for name, p in self.module.named_parameters():
            yield Part([name], p, self.groups[p].size() if p in self.groups else self.copies)

    def memory(self, optimizer: Optimizer) -> MemoryBreakdown:
        """Bytes of model states alive on this rank now."""
        own = list(self.module.parameters())
        states = [value for state in optimizer.state.values() for value in state.values()]
        return MemoryBreakdown(storage_bytes(own), storage_bytes(p.grad for p in own), storage_bytes(states))

    # ---- whole tensors; all ranks call these --------------------------------------------------------------------

    def gradients(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self.module.named_parameters() if p.grad is not None}

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """One after the other, because with zero 3 each is gathered for the purpose."""
        for name, p in self.module.named_parameters():
            yield name, p.detach()

    @torch.no_grad()
    def load_parameters(self, whole: Mapping[str, Tensor]) -> None:
        for name, p in self.module.named_parameters():
            p.copy_(whole[name])

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        names = {p: name for name, p in self.module.named_parameters()}
        groups = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
        states = {names[p]: dict(state) for p, state in optimizer.state.items()}
        return {"state": states, "param_groups": named_groups(optimizer, groups)}

    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        names = {p: name for name, p in self.module.named_parameters()}
        numbered = optimizer.state_dict()["param_groups"]
        new: dict[str, Any] = {"state": {}, "param_groups": []}
        for group, saved, now in zip(optimizer.param_groups, state["param_groups"], numbered, strict=True):
            new["param_groups"].append({**saved, "params": now["params"]})
            for number, p in zip(now["params"], group["params"], strict=True):
                if names[p] in state["state"]:
                    new["state"][number] = state["state"][names[p]]
        optimizer.load_state_dict(new)


class ZeroSharded(Replicated):
    """Zero 1 and 2: the optimizer owns the shards. ``kind_of``: see ``ComposedZero``."""

    def __init__(
        self,
        module: nn.Module,
        plan: Plan,
        mesh: DeviceMesh,
        groups: Mapping[Tensor, ProcessGroup],
        kind_of: Callable[[str], int],
    ) -> None:
        self.module = self.called = module
        self.plan, self.group, self.groups, self.kind_of = plan, mesh.get_group(), groups, kind_of
        self.zero: ComposedZero

    def make_optimizer(self, optimizer_class: type[Optimizer], settings: dict[str, Any]) -> Optimizer:
        beside_backward = self.plan.pp == 1 and "gradients" in self.plan.overlap
        composed = COMPOSED[self.plan.zero] if beside_backward or self.plan.zero == 2 else ComposedUpdate
        self.zero = composed(
            self.module,
            optimizer_class,
            parameters=param_groups(self.module.named_parameters(), optimizer_class),
            kind_of=self.kind_of,
            groups=self.groups,
            group=self.group,
            **settings,
        )
        return self.zero

    def microbatch(self, last: bool) -> AbstractContextManager[Any]:
        return self.zero.no_sync() if isinstance(self.zero, Zero1) and not last else nullcontext()

    def average(self) -> None:
        self.zero.average_after_backward()

    def parts(self) -> Iterator[Part]:
        for flat in self.zero.flats:
            yield Part(flat.names, flat.updated, 1)

    def memory(self, optimizer: Optimizer) -> MemoryBreakdown:
        return self.zero.memory()

    def gradients(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for flat in self.zero.flats:
            if flat.updated.grad is not None:  # on all ranks, or on none
                mean = flat.updated.grad.as_subclass(Tensor)
                found |= zip(flat.names, flat.collect(mean), strict=True)
        return found

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return self.zero.state_dict()

    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        self.zero.load_state_dict(state)


class FullySharded(Replicated):
    """Zero 3: FSDP gathers a block before it is used.

    Args:
        mesh: the data axis; with ``shard`` below dp two axes, copies and shards (hybrid sharding).
        experts: modules of which only some of the ranks have a copy, units of their own; ``expert_mesh``: those ranks.
    """

    def __init__(
        self,
        module: nn.Module,
        plan: Plan,
        mesh: DeviceMesh,
        experts: Sequence[nn.Module] = (),
        expert_mesh: DeviceMesh | None = None,
    ) -> None:
        self.module, self.copies = module, mesh.size() // plan.shard
        names = [name for name, _ in module.named_modules()]
        units = [name for pattern in LAYERS for name in matching(pattern, names)]  # gathered one by one
        precision = (
            MixedPrecision(torch.bfloat16, torch.float32) if plan.precision in ("mixed", "fp8") else None
        )
        settings = {
            "prefetch": plan.prefetch,
            "precision": precision,
            "offload": plan.offload == "parameters",
        }
        for one in experts:
            FullyShardedDataParallel(one, mesh=expert_mesh, **settings)
        self.called = self.fsdp = FullyShardedDataParallel(module, units, mesh, **settings)

    def make_optimizer(self, optimizer_class: type[Optimizer], settings: dict[str, Any]) -> Optimizer:
        optimizer = optimizer_class(param_groups(self.fsdp.named_parameters(), optimizer_class), **settings)
        if isinstance(optimizer, MuonWithAdamW):
            optimizer.places = ShardedMatrices(optimizer, self.fsdp.flats)
        return optimizer

    def microbatch(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext()  # each microbatch reduces: no rank could hold the gradient of the whole model

    def average(self) -> None:
        pass

    def parts(self) -> Iterator[Part]:
        for flat in self.fsdp.flats:
            for p in flat.parameters:
                yield Part([p.name], p.sharded, self.copies)

    def memory(self, optimizer: Optimizer) -> MemoryBreakdown:
        return self.fsdp.memory(optimizer)

    def gradients(self) -> dict[str, Tensor]:
        return {name: g for name, g in self.fsdp.gradients().items() if g is not None}

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        self.fsdp.reshard()
        for flat in self.fsdp.flats:
            yield from zip(flat.names, flat.collect(flat.shard), strict=True)

    def load_parameters(self, whole: Mapping[str, Tensor]) -> None:
        self.fsdp.reshard()
        for flat in self.fsdp.flats:
            flat.assign([whole[name] for name in flat.names])

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return self.fsdp.optimizer_state_dict(optimizer)

    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        load_full_state(self.fsdp.module, self.fsdp.flats, None, optimizer, state)
