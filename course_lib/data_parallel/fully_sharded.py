"""FSDP with what production adds to it: hybrid sharding, mixed precision, offload, replicated parameters, settings for
single units, and units made one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.data_parallel.fsdp import FSDP
from course_lib.data_parallel.fsdp_unit import ShardedParameter, Unit
from course_lib.data_parallel.fsdp_units import ROOT, find_parameters, setting_for
from course_lib.data_parallel.hybrid import HybridFlat
from course_lib.data_parallel.mixed_precision import MixedPrecision, MixedPrecisionFlat
from course_lib.data_parallel.offloaded_shards import OffloadedFlat
from course_lib.data_parallel.replicated import ReplicatedParameters
from course_lib.models.names import matching

__all__ = ["FullyShardedDataParallel", "MixedPrecision"]


class ProductionFlat(OffloadedFlat, MixedPrecisionFlat, HybridFlat):
    """A flat buffer with all of these, in the order in which a mean passes through them: it is reduced among the
    copies, cast to the dtype of the shard, and moved to the CPU."""


class FullyShardedDataParallel(FSDP):
    """Shards ``module`` in place and wraps it; see ``FSDP`` for how it works and for the arguments not named here.

    >>> model = FullyShardedDataParallel(model, ["blocks.*"], mesh)                  # doctest: +SKIP

    or from the bottom up, each block with its own settings, as with PyTorch's ``fully_shard``:

    >>> for block in model.blocks:                                                   # doctest: +SKIP
    ...     FullyShardedDataParallel(block, mesh=mesh)                               # doctest: +SKIP
    >>> model = FullyShardedDataParallel(model, mesh=mesh)                           # doctest: +SKIP

    Args:
        units: names of submodules, or a function; without it the module itself is the only new unit. Modules inside
            that are sharded already stay units with their own settings.
        mesh: one axis: every rank holds a shard. Two axes, copies and shards: hybrid sharding, where a row of the mesh
            holds one copy. The second axis is the paper's sharding factor F; with 1, plain replicas.
        reshard_after_forward: for all units, or a mapping from unit names (``*`` as in ``units``, ``""`` the root).
        precision: a ``MixedPrecision`` for all units, or such a mapping.
        offload: keep shards and their gradients, and with them the optimizer's states, in the memory of the CPU.
        ignored: names of parameters that stay on every rank (``models/names.py``). Their gradients
            are averaged over all ranks at the end of backward.

    Raises:
        ValueError: as ``FSDP``; a name in ``ignored`` that no parameter has.
    """

    def __init__(
        self,
        module: nn.Module,
        units: Iterable[str] | Callable[[str, nn.Module], bool] = (),
        mesh: DeviceMesh | None = None,
        *,
        reshard_after_forward: bool | Mapping[str, bool] | None = None,
        prefetch: int = 1,
        precision: MixedPrecision | Mapping[str, MixedPrecision] | None = None,
        offload: bool = False,
        ignored: Iterable[str] = (),
    ) -> None:
        if mesh is None:
            raise ValueError("mesh is missing: FSDP needs to know which ranks share the parameters")
        replicated = find_parameters(module, ignored)
        inner = {m: m.__dict__[MARK] for m in module.modules() if MARK in m.__dict__}
        self._settings = {"precision": precision, "offload": offload}
        self._left_out = [*replicated, *(p for m in inner for p in m.parameters())]
        super().__init__(module, units, mesh, prefetch=prefetch)
        for unit in self.units:
            unit.precision = setting_for(unit.name, module, precision) or MixedPrecision()
            own = setting_for(unit.name, module, reshard_after_forward)
            unit.reshard_after_forward = unit.reshard_after_forward if own is None else own
        self.kept: dict[
            Unit, list[int]
        ] = {}  # units that stay unsharded after backward, until they are updated
        self.resharded_by_default = reshard_after_forward is None
        self.replicated = ReplicatedParameters(replicated, mesh)
        self._adopt(inner)
        module.__dict__[MARK] = (
            self  # not an attribute, which would make the wrapper a submodule of its module
        )

    # ---- the seams of the core --------------------------------------------------------------------------------

    def checked(self, mesh: DeviceMesh) -> DeviceMesh:
        if mesh.ndim > 2:
            raise ValueError(
                f"a mesh with axes {mesh.mesh_dim_names} was given; FSDP takes one of shards, or of copies and shards"
            )
        return mesh

    def left_out(self) -> Iterable[nn.Parameter]:
        return self._left_out

    def make_flat(self, unit: str, parameters: list[ShardedParameter]) -> ProductionFlat:
        return ProductionFlat(
            unit or "root",
            parameters,
            self.shard_group,
            self.device,
            precision=setting_for(unit, self.module, self._settings["precision"]),
            offload=self._settings["offload"],
            replica_group=self.mesh.get_group(0) if self.mesh.ndim == 2 else None,
        )

    def before_forward(self, unit: Unit, args: tuple, kwargs: dict) -> tuple:
        args, kwargs = unit.precision.inputs((args, kwargs))
        return super().before_forward(unit, args, kwargs)

    def after_forward(self, unit: Unit, output: Any) -> Any:
        super().after_forward(unit, output)
        return unit.precision.outputs(output)

    def reshard_outdated(self) -> None:
        for unit in self.units:
            if self.kept.pop(unit, None) != unit.versions():
                unit.reshard()

    def _after_backward(self) -> None:
        super()._after_backward()
        self.kept = {unit: unit.versions() for unit in self.units if not unit.reshard_after_backward}
        if self.root.synchronising:
            self.replicated.average_gradients()

    # ---- settings ---------------------------------------------------------------------------------------------

    @property
    def root(self) -> Unit:
        return self.units[-1]

    def set_reshard_after_forward(self, reshard: bool, units: Iterable[str] | None = None) -> None:
        """For all units, or for those whose names match: False saves the gather of backward."""
        for unit in self.select(units):
            unit.reshard_after_forward = reshard

    def set_reshard_after_backward(self, reshard: bool, units: Iterable[str] | None = None) -> None:
        """False keeps a unit unsharded after backward until an optimizer has updated it, which saves the gather of the
        next forward: for all microbatches of a step but the last."""
        for unit in self.select(units):
            unit.reshard_after_backward = reshard

    def set_requires_gradient_sync(self, synchronise: bool, units: Iterable[str] | None = None) -> None:
        """False accumulates gradients without reducing them, as ``no_sync`` does, for all units or some of them."""
        for unit in self.select(units):
            unit.synchronising = synchronise

    def select(self, units: Iterable[str] | None) -> list[Unit]:
        """Units by name (``models/names.py``); None: all; ``""``: the root.

        Raises:
            ValueError: a name that no unit has.
        """
        if units is None:
            return self.units
        chosen = []
        for pattern in [units] if isinstance(units, str) else units:
            called = matching(pattern, [unit.name for unit in self.units])
            found = [unit for unit in self.units if unit.name in called]
            if not found:
                names = ", ".join(unit.name or "'' (the root)" for unit in self.units)
                raise ValueError(f"no unit is called {pattern!r}; there are {names}")
            chosen += found
        return chosen

    def _adopt(self, inner: Mapping[nn.Module, FullyShardedDataParallel]) -> None:
        """Schedule the units of modules that were sharded before, under the names they have in this model."""
        names = {module: name for name, module in self.module.named_modules()}
        adopted = []
        for module, wrapper in inner.items():
            for unit in wrapper.units:
                if unit.schedule is not wrapper:
                    continue  # adopted by a module between that one and this
                if unit.name == ROOT and wrapper.resharded_by_default:
                    unit.reshard_after_forward = True
                unit.rename(names[module])
                unit.schedule = self
                adopted.append(unit)
        self.units = adopted + self.units
        self.last_order = adopted + self.last_order


MARK = "_fully_sharded"
