"""Fully sharded data parallelism, FSDP (Zhao et al., arXiv:2304.11277), applied to a plain model by hooks.

A model is cut into units, usually its blocks. The parameters of a unit are unsharded for its forward and for its
backward; between them every rank keeps a shard. With M bytes of parameters and p ranks, each rank holds M/p and the
units that are unsharded at the moment, and sends

    all-gather for forward + all-gather for backward + reduce-scatter      3 M (p-1)/p   a step.

A unit is gathered while the unit before it computes, so that the messages hide behind the computation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed.device_mesh import DeviceMesh

from course_lib.data_parallel.fsdp_unit import ShardedFlat, ShardedParameter, Unit
from course_lib.data_parallel.fsdp_units import ROOT, deal_parameters
from course_lib.data_parallel.sharded_module import ShardedModule
from course_lib.one_device.nested_tensors import map_tensors, tensors_in


class FSDP(ShardedModule):
    """Shards ``module`` in place and wraps it. Train it as on one device, each rank on its equal slice of the batch.

    >>> model = FSDP(model, ["blocks.*"], mesh)                                      # doctest: +SKIP
    >>> optimizer = AdamW(model.parameters())  # after sharding                      # doctest: +SKIP

    All ranks start with the parameters and buffers of the mesh's first rank. Gradients are averaged over the ranks.
    Optimizers that update element by element (SGD, Adam, AdamW) find the sharded form of each parameter under its
    name. What is in no unit belongs to the root unit, which is unsharded from the beginning of forward to the end of
    backward. ``FullyShardedDataParallel`` adds what production needs: hybrid sharding, mixed precision, offload.

    Args:
        module: any module. Frozen parameters are sharded too, and are not reduced.
        units: names of submodules (``"blocks.*"``, see ``models/names.py``), or a function of name and
            module that chooses.
        mesh: one axis; every rank holds a shard.
        reshard_after_forward: True reshards every unit after its forward. False reshards none: one gather a step,
            2 M (p-1)/p sent, and all of M in memory. None keeps only the root, with which backward begins.
        prefetch: how many units ahead are gathered; with 0 each unit waits for its own gather.

    Raises:
        ValueError: the mesh, a unit or ``prefetch`` cannot be used; the model is as it was.
    """

    def __init__(
        self,
        module: nn.Module,
        units: Iterable[str] | Callable[[str, nn.Module], bool],
        mesh: DeviceMesh,
        *,
        reshard_after_forward: bool | None = None,
        prefetch: int = 1,
    ) -> None:
        super().__init__()
        if prefetch < 0:
            raise ValueError(f"prefetch must be 0 or more units, not {prefetch}")
        self.module, self.mesh, self.prefetch = module, self.checked(mesh), prefetch
        self.device = torch.device(mesh.device_type)
        self.units = [
            Unit(
                name,
                owner,
                [self.make_flat(name, [ShardedParameter(*p) for p in same]) for same in kinds.values()],
                reshard_after_forward=name != ROOT
                if reshard_after_forward is None
                else reshard_after_forward,
            )
            for name, (owner, kinds) in deal_parameters(module, units, left_out=self.left_out()).items()
        ]
        self.share_buffers()
        for unit in self.units:
            unit.hook(self)
        self.order: list[Unit] = []  # units in the order of this forward
        self.last_order = [unit for unit in self.units if unit.name != ROOT]  # in that of the forward before
        self.reductions: list[Generator[None]] = []  # under way
        self.in_backward = False

    def make_flat(self, unit: str, parameters: list[ShardedParameter]) -> ShardedFlat:
        return ShardedFlat(unit or "root", parameters, self.shard_group, self.device)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    # ---- forward: unshard, compute, reshard -------------------------------------------------------------------

    def before_forward(self, unit: Unit, args: tuple, kwargs: dict) -> tuple:
        if unit.name == ROOT:
            self._begin_forward()
        elif not self.in_backward:  # else backward repeats a forward (recomputation)
            self.order.append(unit)
        unit.unshard()
        if not self.in_backward:
            for ahead in self.last_order[len(self.order) :][: self.prefetch]:
                ahead.gather()
            unit.begin_span("forward")
        # Backward of the unit is over when it has computed the gradients of its inputs. A hook on an input itself would
        # also wait for gradients from other modules that use the tensor. So the module gets a view, which has the hook.
        if self.in_backward or unit.name == ROOT or not torch.is_grad_enabled():
            return args, kwargs
        args, kwargs = map_tensors(lambda t: t.view_as(t) if t.requires_grad else t, (args, kwargs))
        if inputs := [t for t in tensors_in((args, kwargs)) if t.requires_grad]:
            register_multi_grad_hook(inputs, partial(self._inputs_ready, unit), mode="all")
        return args, kwargs

    def after_forward(self, unit: Unit, output: Any) -> None:
        if self.in_backward:
            return
        unit.end_span()
        # If an output is a view, the hook is set on its base: after an operation in place a view has lost its hooks.
        outputs = [t._base if t._is_view() and t._base.requires_grad else t for t in tensors_in(output)]
        if outputs := [t for t in outputs if t.requires_grad]:
            position = len(self.order) - (unit.name != ROOT)
            begin = partial(self._before_backward, unit, self.order, position)
            register_multi_grad_hook(outputs, begin, mode="any")  # with the first gradient that arrives
            unit.due = True
            unit.uses += 1
        if unit.reshard_after_forward or not outputs:
            unit.reshard()

    def _begin_forward(self) -> None:
        """What is unsharded now is from an earlier forward, and may be out of date."""
        self.reshard_outdated()
        if self.in_backward:  # the backward before has failed
            self.in_backward, self.reductions = False, []
            for unit in self.units:
                unit.expect_backward()
                unit.due = False
                for flat in unit.flats:
                    flat.drop_gradients()
        self.last_order, self.order = self.order or self.last_order, []

    def reshard_outdated(self) -> None:
        self.reshard()

    def reshard(self) -> None:
        """Reshard all units."""
        for unit in self.units:
            unit.reshard()

    # ---- backward: unshard, compute, reshard, reduce ----------------------------------------------------------

    def _before_backward(self, unit: Unit, order: list[Unit], position: int, _: Tensor) -> None:
        if not self.in_backward:
            self.in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        unit.due = True
        unit.unshard()
        for ahead in reversed(order[max(position - self.prefetch, 0) : position]):
            ahead.gather()
        unit.begin_span("backward")

    def gradient_ready(self, unit: Unit) -> None:
        unit.missing -= 1
        if unit.missing == 0 and not unit.frozen and unit.name != ROOT:
            self._reduce(unit)  # a frozen parameter may still be needed, for the gradients of the inputs

    def _inputs_ready(self, unit: Unit, _: Any) -> None:
        unit.uses -= 1
        if (
            unit.uses == 0 and unit.due
        ):  # not done by gradient_ready: some parameter is frozen, or was not reached
            self._reduce(unit)

    def _reduce(self, unit: Unit) -> None:
        """Backward of the unit is over: reshard its parameters and start to average their gradients."""
        unit.end_span()
        if unit.reshard_after_backward:
            unit.reshard()
        unit.due, unit.missing = False, len(unit.trainable)
        self._advance()  # wait for the reduce-scatter of the unit before, which ran beside this unit's backward
        for flat in unit.flats:
            if flat.trainable:
                flat.take_gradients()
                if unit.synchronising:
                    self.reductions.append(flat.reduction())
                    next(self.reductions[-1])

    def _advance(self) -> None:
        """Wait for the collectives under way, and start those that follow on them."""
        self.reductions = [r for r in self.reductions if next(r, "finished") != "finished"]

    def _after_backward(self) -> None:
        """Reduce what no hook has reduced. Every rank does so in the order of ``units``, so their collectives match."""
        for unit in self.units:
            if unit.due:
                self._reduce(unit)
            unit.expect_backward()
            if unit.reshard_after_backward:
                unit.reshard()
        while self.reductions:
            self._advance()
        self.in_backward = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without reducing them, for all microbatches of a step but the last. It saves
        reduce-scatters, and every rank keeps the unsharded gradient of the whole model."""
        for unit in self.units:
            unit.synchronising = False
        try:
            yield
        finally:
            for unit in self.units:
                unit.synchronising = True
