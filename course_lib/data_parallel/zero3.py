"""ZeRO stage 3 (arXiv:1910.02054, section 5.3): the parameters, too, are there only while they are used.

A module's parameters are gathered before its forward and freed after it, and once more around its backward: two
all-gathers and a reduce-scatter, 3 Psi where the other stages send 2. Hooks do it from outside. The model is a
plain module still, whose parameters are empty between uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.optim import Optimizer

from course_lib.data_parallel.flat import FlatParameters
from course_lib.data_parallel.zero import Zero2


class Zero3(Zero2):
    """Stage 3: parameters, gradients and optimizer states, a p-th of each on every rank.

    Used as ``Zero1`` is. Frozen parameters are sharded as well. A parameter that two modules share is gathered
    for each of them. Read parameters with ``state_dict``: those of the model are empty.

    Args:
        units: modules to be gathered whole, with all that is below them: fewer, larger messages. A module that
            reads a submodule's parameters without calling it, as ``nn.MultiheadAttention`` does, has to be one.
            By default every module is by itself.
        settings: as in ``Zero1``; ``bucket_mb`` has no effect.

    Raises:
        ValueError: as ``Zero1``; a unit that is not in the model.
    """

    stage = 3

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: type[Optimizer],
        *,
        units: Iterable[nn.Module] = (),
        **settings: Any,
    ) -> None:
        self.units = _units(model, list(units))
        super().__init__(model, optimizer_class, **settings)
        self.users = dict.fromkeys(self.flats, 0)  # modules that are using each flat at this moment
        flat_of = {p: flat for flat in self.flats for p in flat.parameters}
        for module, (_, parameters) in self.units.items():
            flats = list(dict.fromkeys(flat_of[p] for p in parameters if p in flat_of))
            if flats:
                self._hook(module, flats)
        for flat in self.flats:
            flat.shard_only()

    def _cut(self, parameters: list[nn.Parameter]) -> Iterator[tuple[str, list[nn.Parameter]]]:
        """One flat for each unit; its frozen parameters apart, as they have no gradient."""
        left = dict.fromkeys(parameters)
        for name, own in self.units.values():
            kinds: dict[tuple, list[nn.Parameter]] = {}
            for p in own:
                if p in left:  # a shared parameter belongs to the first
                    del left[p]
                    kinds.setdefault((p.dtype, p.requires_grad), []).append(p)
            for cut in kinds.values():
                yield name, cut

    def _hook(self, module: nn.Module, flats: list[FlatParameters]) -> None:
        def before_forward(*_: Any) -> None:
            self._use(flats)

        def after_forward(_: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            self._release(flats)
            # Backward of the module runs from the gradient of its output to the gradients of its inputs.
            if outputs := list(_differentiable(output)):
                register_multi_grad_hook(outputs, lambda _: self._use_in_backward(flats), mode="any")
                if inputs := list(_differentiable((args, kwargs))):
                    register_multi_grad_hook(inputs, lambda _: self._release(flats), mode="all")

        module.register_forward_pre_hook(before_forward)
        module.register_forward_hook(after_forward, with_kwargs=True, always_call=True)

    def _use(self, flats: list[FlatParameters]) -> None:
        for flat in flats:
            self.users[flat] += 1
            flat.unshard()

    def _use_in_backward(self, flats: list[FlatParameters]) -> None:
        self._backward_begins()
        self._use(flats)

    def _release(self, flats: list[FlatParameters]) -> None:
        for flat in flats:
            self.users[flat] = max(0, self.users[flat] - 1)
            if not self.users[flat]:
                flat.free()

    def _gradient_arrived(self, flat: FlatParameters, parameter: nn.Parameter) -> None:
        super()._gradient_arrived(flat, parameter)
        if not self.missing[flat]:  # every use has had its backward; inputs without a gradient cannot tell
            self._free(flat)

    def _backward_ends(self) -> None:
        super()._backward_ends()
        for flat in self.flats:
            self._free(flat)

    def _free(self, flat: FlatParameters) -> None:
        self.users[flat] = 0
        flat.free()

    def _publish(self) -> None:
        """The update goes nowhere: whoever needs a parameter will gather it."""


def _units(model: nn.Module, whole: list[nn.Module]) -> dict[nn.Module, tuple[str, list[nn.Parameter]]]:
    """Each module that is gathered by itself, with its name and the parameters that are gathered for it."""
    strangers = [module for module in whole if module not in set(model.modules())]
    if strangers:
        raise ValueError(
            f"units must be modules of the model, not a {type(strangers[0]).__name__} outside it"
        )
    units, covered = {}, set()
    for name, module in model.named_modules():
        if module in covered:
            continue
        if module in whole:
            covered |= set(module.modules())
        parameters = list(module.parameters(recurse=module in whole))
        if parameters:
            units[module] = (name or type(model).__name__, parameters)
    return units


def _differentiable(data: Any) -> Iterator[Tensor]:
    """The tensors in nested containers that will have a gradient."""
    for leaf in torch.utils._pytree.tree_leaves(data):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            yield leaf
