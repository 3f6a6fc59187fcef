"""Fully sharded data parallelism, FSDP (Zhao et al., arXiv:2304.11277), applied to a plain model by hooks.

A model is cut into units, usually its blocks. A unit's parameters are whole only around its forward and its
backward; between them every rank keeps a shard. M being the bytes of the model and W the ranks that share it,
each rank holds M/W and the units alive, and sends

    all-gather for forward + all-gather for backward + reduce-scatter      3 M (W-1)/W   a step.

What makes it fast is order: a unit is gathered while the one before it computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from course_lib.data_parallel.flat import storage_bytes
from course_lib.data_parallel.fsdp_checkpoint import full_state, load_full_state
from course_lib.data_parallel.fsdp_unit import FlatBuffer, Unit
from course_lib.data_parallel.fsdp_wrap import ROOT, deal
from simulator.ledgers.memory import MemoryBreakdown


class FSDP:
    """Shards ``model`` in place. Train it as on one device, each rank on its own equal slice of the batch.

    >>> fsdp = FSDP(model, ["blocks.*"], mesh)                                       # doctest: +SKIP
    >>> optimizer = AdamW(model.parameters())  # after: it must see the pieces       # doctest: +SKIP

    All ranks start with the parameters and buffers of the mesh's first rank, and gradients are averaged over
    them. Optimizers that update element by element (SGD, Adam, AdamW) find one flat piece of each parameter
    under its name. What is in no unit, and a parameter that several units use, belongs to the root unit: it is
    whole from the beginning of forward to its end, and again in backward.

    Args:
        model: any module. Frozen parameters are sharded too, and are not reduced.
        units: names of submodules, ``*`` standing for one part of a name (``"blocks.*"``), or a function of
            name and module that chooses.
        mesh: one axis: every rank holds a shard. Two axes, copies and shards: hybrid sharding, where a row of
            the mesh holds one copy. The second axis is the paper's sharding factor F; with 1, plain replicas.
        reshard_after_forward: True frees every unit after its forward. False none: one gather a step, 2 M (W-1)/W
            sent, and all of M in memory. None frees all but the root, with which backward begins.
        prefetch: how many units ahead are gathered; 0: each waits for its own.
        compute_dtype: of forward and backward, such as bfloat16. Shards, reductions and the update keep the
            dtype of the parameters.
        offload: keep shards and their gradients, and with them the optimizer's states, in the CPU's memory.

    Raises:
        ValueError: the mesh, a unit or ``prefetch`` cannot be used; the model is as it was.
    """

    def __init__(
        self,
        model: nn.Module,
        units: Iterable[str] | Callable[[str, nn.Module], bool],
        mesh: DeviceMesh,
        *,
        reshard_after_forward: bool | None = None,
        prefetch: int = 1,
        compute_dtype: torch.dtype | None = None,
        offload: bool = False,
    ) -> None:
        if mesh.ndim > 2:
            raise ValueError(
                f"a mesh with axes {mesh.mesh_dim_names} was given; FSDP takes one of shards, or of copies and shards"
            )
        if prefetch < 0:
            raise ValueError(f"prefetch must be 0 or more units, not {prefetch}")
        self.model, self.prefetch, self.compute_dtype = model, prefetch, compute_dtype
        self.device = torch.device(mesh.device_type)
        self.shard_group = mesh.get_group(mesh.ndim - 1)
        self.replica_group = mesh.get_group(0) if mesh.ndim == 2 else None
        groups = self.shard_group, self.replica_group
        self.units = []
        for name, (module, kinds) in deal(model, units).items():
            flats = []
            for (trains, _), slots in kinds.items():
                label = (name or "root") + ("" if trains else " (frozen)")
                flats.append(FlatBuffer(label, slots, *groups, self.device, compute_dtype, offload))
            reshard = name != ROOT if reshard_after_forward is None else reshard_after_forward
            self.units.append(Unit(name, module, flats, reshard))
        for buffer in model.buffers():
            buffer.data = buffer.to(self.device)
            for group in filter(None, groups):
                dist.broadcast(buffer, group=group, group_src=0)

        for unit in self.units:
            unit.module.register_forward_pre_hook(partial(self._before_forward, unit), with_kwargs=True)
            unit.module.register_forward_hook(partial(self._after_forward, unit), always_call=True)
            for slot in unit.trainable:
                slot.whole.register_post_accumulate_grad_hook(partial(self._gradient_ready, unit))
        self.order: list[Unit] = []  # in which this forward has run them
        self.expected = [unit for unit in self.units if unit.name != ROOT]  # the order of the forward before
        self.reductions: list[Iterator[None]] = []  # on their way
        self.in_backward, self.synchronising = False, True

    # ---- forward ------------------------------------------------------------------------------------------

    def _before_forward(self, unit: Unit, _: nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        if unit.name == ROOT:
            self._start_over()
        elif not self.in_backward:  # else it is recomputed
            self.order.append(unit)
        unit.unshard()
        if not self.in_backward:
            for ahead in self.expected[len(self.order) :][: self.prefetch]:
                ahead.gather()
            unit.begin_span("forward")
        if self.compute_dtype is None:
            return None
        cast = lambda t: t.to(self.compute_dtype) if t.is_floating_point() else t  # noqa: E731
        return tree_map_only(Tensor, cast, (args, kwargs))

    def _after_forward(self, unit: Unit, _: nn.Module, args: tuple, output: Any) -> None:
        if self.in_backward:
            return
        unit.end_span()
        outputs = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad]
        if outputs:  # the first gradient that arrives at one of them begins the unit's backward
            position = len(self.order) - (unit.name != ROOT)
            before = partial(self._before_backward, unit, self.order, position)
            register_multi_grad_hook(outputs, before, mode="any")
            unit.due = True
        if unit.reshard_after_forward or not outputs:
            unit.reshard()

    def _start_over(self) -> None:
        """A forward begins: whatever is whole is from an earlier one, and may be out of date."""
        self._rest()
        if self.in_backward:  # it failed
            self.in_backward, self.reductions = False, []
            for unit in self.units:
                unit.forget()
        self.expected, self.order = self.order or self.expected, []

    def _rest(self) -> None:
        for unit in self.units:
            unit.reshard()

    # ---- backward -----------------------------------------------------------------------------------------

    def _before_backward(self, unit: Unit, order: list[Unit], position: int, _: Tensor) -> None:
        if not self.in_backward:
            self.in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        unit.unshard()
        for ahead in reversed(order[max(position - self.prefetch, 0) : position]):
            ahead.gather()
        unit.begin_span("backward")

    def _gradient_ready(self, unit: Unit, _: Tensor) -> None:
        unit.missing -= 1
        if not unit.missing:
            self._reduce(unit)

    def _reduce(self, unit: Unit) -> None:
        """The unit's backward is over: free its parameters, and send its gradients on their way."""
        unit.end_span()
        unit.reshard()
        unit.due, unit.missing = False, len(unit.trainable)
        self._advance()  # so one unit's gradients are under way while the next unit's are made, and no more
        for flat in unit.flats:
            if flat.trainable:
                flat.take_gradients()
                if self.synchronising:
                    self.reductions.append(flat.reduction())
                    next(self.reductions[-1])

    def _advance(self) -> None:
        """Wait for the collectives under way, and start those that follow on them."""
        self.reductions = [r for r in self.reductions if next(r, "finished") != "finished"]

    def _after_backward(self) -> None:
        for unit in self.units:
            if unit.due or unit.missing < len(unit.trainable):  # with a parameter that backward did not reach
                self._reduce(unit)
        self._rest()
        while self.reductions:
            self._advance()
        self.in_backward = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without reducing them, for all microbatches of a step but the last. It saves
        reduce-scatters and costs the memory of a whole gradient on every rank."""
        self.synchronising = False
        try:
            yield
        finally:
            self.synchronising = True

    # ---- around the optimizer's step ----------------------------------------------------------------------

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float = math.inf) -> Tensor:
        """Scale the gradients so that their norm, over all parameters and shards, is at most ``max_norm``.

        Returns the norm as it was. All ranks call it.

        Raises:
            ValueError: the norm is not finite; every rank raises it, and nothing is changed.
        """
        pieces = [slot.piece for unit in self.units for slot in unit.trainable]
        grads = [piece.grad for piece in pieces if piece.grad is not None]
        squares = torch.zeros((), dtype=torch.float64, device=self.device)
        squares += sum(grad.double().square().sum().to(self.device) for grad in grads)
        dist.all_reduce(squares, group=self.shard_group)
        norm = squares.sqrt()
        if not norm.isfinite():
            raise ValueError(
                f"the norm of the gradient is {norm:g}: a loss or a gradient was not finite on some rank, so call "
                "zero_grad and take no step with it; the parameters are as they were"
            )
        scale = (max_norm / (norm + 1e-6)).clamp(max=1).item()
        if scale < 1:
            for grad in grads:
                grad *= scale
        return norm.float()

    def memory(self, optimizer: Optimizer | None = None) -> MemoryBreakdown:
        """Bytes of model states alive on this rank now, those that are offloaded included."""
        flats = [flat for unit in self.units for flat in unit.flats]
        of_optimizer = optimizer.state.values() if optimizer else ()
        parameters, gradients = map(sum, zip(*(flat.memory() for flat in flats), strict=True))
        return MemoryBreakdown(
            parameters, gradients, storage_bytes(v for s in of_optimizer for v in s.values())
        )

    def state_dict(self, optimizer: Optimizer | None = None) -> dict[str, Any]:
        """Model, and optimizer if given, as one device would have them; on every rank. All ranks call it.

        Names, shapes and layout are those of ``checkpoint.py``: any number of ranks can take it up.
        """
        self._rest()
        return full_state(self.model, self.units, optimizer)

    def load_state_dict(self, state: Mapping[str, Any], optimizer: Optimizer | None = None) -> None:
        """Take this rank's part of what ``state_dict`` gave, here or in a run of another size.

        Raises:
            ValueError: names, shapes or parameter groups are others than this model's; nothing is changed.
        """
        self._rest()
        load_full_state(self.model, self.units, state, optimizer)
