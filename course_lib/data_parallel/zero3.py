"""ZeRO stage 3 (arXiv:1910.02054, section 5.3): parameters, too, are there only while they are used.

A module's parameters are gathered before its forward and freed after it, and once more around its backward: two
all-gathers and a reduce-scatter, 3 Psi where stages 1 and 2 send 2 Psi. Hooks do it from outside. FSDP is this idea
with a schedule: it gathers the next unit while this one computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.optim import Optimizer

from course_lib.data_parallel.sharded_bucket import ShardedBucket
from course_lib.data_parallel.zero import Zero2
from course_lib.one_device.nested_tensors import tensors_in
from course_lib.runtime import trace


class Zero3(Zero2):
    """Stage 3: parameters, too. A module's parameters are gathered before its forward and freed after it, and once
    more around its backward. Read parameters with ``model_state_dict``; those of the model are empty.

    Frozen parameters are sharded as well. A parameter that two modules share is gathered for each of them.

    Args:
        units: modules to be gathered whole, with all that is below them. A module that reads a submodule's parameters
            without calling it, as ``nn.MultiheadAttention`` does, has to be one. By default every module is by itself.
        settings: as in ``Zero1``; ``bucket_cap_mb`` has no effect.
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
        self.units = modules_with_parameters(model, list(units))
        super().__init__(model, optimizer_class, **settings)
        self.users = dict.fromkeys(self.flats, 0)  # modules that are using each flat at this moment
        flat_of = {p: flat for flat in self.flats for p in flat.parameters}
        for module, (_, parameters) in self.units.items():
            self._hook(module, list(dict.fromkeys(flat_of[p] for p in parameters if p in flat_of)))
        for flat in self.flats:
            flat.shard_only()

    def cut(self, parameters: list[nn.Parameter]) -> Iterator[tuple[str, list[nn.Parameter]]]:
        """One flat for each module and kind of parameter; a shared parameter belongs to the first module."""
        left = dict.fromkeys(parameters)
        for name, own in self.units.values():
            kinds: dict[tuple, list[nn.Parameter]] = {}
            for p in own:
                if p in left:
                    del left[p]
                    kinds.setdefault((p.dtype, p.requires_grad), []).append(p)
            for cut in kinds.values():
                yield name, cut

    def _hook(self, module: nn.Module, flats: list[ShardedBucket]) -> None:
        def before_forward(*_: Any) -> None:
            self._use(flats)

        def after_forward(_: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            self._release(flats)
            # Backward of the module begins when the gradient of an output arrives and ends when those of all inputs
            # have arrived. If an output is a view of another tensor, its ``_base``, the hook is on that tensor: a
            # view loses its hooks when it is changed in place.
            outputs = [t._base if t._is_view() and t._base.requires_grad else t for t in tensors_in(output)]
            if outputs := [t for t in outputs if t.requires_grad]:
                register_multi_grad_hook(outputs, lambda _: self._use_in_backward(flats), mode="any")
                if inputs := [t for t in tensors_in((args, kwargs)) if t.requires_grad]:
                    register_multi_grad_hook(inputs, lambda _: self._release(flats), mode="all")

        module.register_forward_pre_hook(before_forward)
        module.register_forward_hook(after_forward, with_kwargs=True, always_call=True)

    def _use(self, flats: list[ShardedBucket]) -> None:
        for flat in flats:
            self.users[flat] += 1
            with trace.waiting():
                flat.unshard()

    def _use_in_backward(self, flats: list[ShardedBucket]) -> None:
        self._backward_begins()
        self._use(flats)

    def _release(self, flats: list[ShardedBucket]) -> None:
        for flat in flats:
            self.users[flat] = max(0, self.users[flat] - 1)
            if not self.users[flat]:
                flat.reshard()

    def _gradient_ready(self, flat: ShardedBucket, parameter: nn.Parameter):
        super()._gradient_ready(flat, parameter)
        # For a module whose inputs are token numbers ``_release`` is not called: they have no gradient.
        if not self.missing[flat]:
            self._free(flat)

    def _backward_ends(self) -> None:
        super()._backward_ends()
        for flat in self.flats:
            self._free(flat)

    def _free(self, flat: ShardedBucket) -> None:
        self.users[flat] = 0
        flat.reshard()

    def gather_parameters(self) -> None:
        """Nothing is sent: what needs a parameter will gather it."""


def modules_with_parameters(
    model: nn.Module, units: list[nn.Module]
) -> dict[nn.Module, tuple[str, list[nn.Parameter]]]:
    """Each module that is gathered by itself, with its name and the parameters that are gathered for it.

    Raises:
        ValueError: a unit is not in the model.
    """
    if strangers := [module for module in units if module not in set(model.modules())]:
        raise ValueError(
            f"units must be modules of the model, not a {type(strangers[0]).__name__} outside it"
        )
    found, covered = {}, set()
    for name, module in model.named_modules():
        if module in covered:
            continue
        if module in units:
            covered |= set(module.modules())
        parameters = list(module.parameters(recurse=module in units))
        if parameters:
            found[module] = (name or type(model).__name__, parameters)
    return found
