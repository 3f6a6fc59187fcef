"""What a rank keeps of a user's step: weights, outputs of modules, gradients, and the weights after it.

Hooks that hold for all modules and all optimizers do it, so that the step itself needs no change.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.modules import module as hooks
from torch.nn.utils import clip_grad
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

# The kinds of what is kept, in the order in which a step makes them. Flowing: the gradient of a module's output.
# A gradient is what the optimizer takes; unclipped is what clipping takes. After: a weight that a step has moved.
WEIGHT, OUTPUT, FLOWING = "weight", "output", "flowing"
UNCLIPPED, GRADIENT, AFTER = "unclipped", "gradient", "after"
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


class NoStepError(ValueError):
    """What was given is no step: this is told, and not where it was found out."""


@dataclass(frozen=True)
class Item:
    """One tensor on one rank.

    Attributes:
        step: how many steps the optimizer had made.
        given: what the module was given, for an output.
        offset: where in the whole tensor it begins, in each dimension; DTensors say that.
        partial: a DTensor that says that it is an addend of a sum.
    """

    kind: str
    name: str
    step: int
    value: Tensor
    given: Tensor | None = None
    offset: tuple[int, ...] | None = None
    partial: bool = False


def record(step: Callable[[int, int], Any], rank: int, ranks: int) -> list[Item]:
    """Run ``step(rank, ranks)`` in float64 from a fixed seed, without dropout; what it made, in order.

    Raises:
        ValueError: ``step`` returns no model.
    """
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    default, recorder = torch.get_default_dtype(), Recorder()
    torch.set_default_dtype(torch.float64)
    try:
        with recorder.listening(), _without_dropout():
            model = step(rank, ranks)
    finally:
        torch.set_default_dtype(default)
    if not isinstance(model, nn.Module):
        raise NoStepError(
            f"step(rank, ranks) must return its model, an nn.Module, not {type(model).__name__}"
        )
    return recorder.items(model)


class Recorder:
    def __init__(self) -> None:
        self.kept: list[tuple[str, nn.Module, int, Any, Any]] = []
        self.weights: dict[tuple[nn.Module, str, int], Any] = {}
        self.gradients: list[tuple[str, int, Tensor, Any]] = []  # kind, step, parameter, its gradient
        self.steps: Counter[Optimizer] = Counter()
        self.given: dict[nn.Module, list[Any]] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        handles = (
            hooks.register_module_forward_pre_hook(self._before),
            hooks.register_module_forward_hook(self._after),
            register_optimizer_step_pre_hook(self._optimizer),
        )
        clip = clip_grad._clip_grads_with_norm_

        def clipped(parameters: Any, *args: Any, **kwargs: Any) -> None:
            parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            self._clipped(parameters)
            clip(parameters, *args, **kwargs)

        clip_grad._clip_grads_with_norm_ = clipped
        try:
            yield
        finally:
            clip_grad._clip_grads_with_norm_ = clip
            for handle in handles:
                handle.remove()

    def items(self, model: nn.Module) -> list[Item]:
        """All that was kept of the modules of ``model``, under their names."""
        while isinstance(inner := getattr(model, "module", None), nn.Module) and len(model._modules) == 1:
            model = inner  # DDP, and wrappers like it
        modules = {module: _clean(name) for name, module in model.named_modules(remove_duplicate=True)}
        items = [
            Item(AFTER if step else WEIGHT, f"{modules[m]}.{name}".lstrip("."), step, *value)
            for (m, name, step), value in self.weights.items()
            if m in modules and (step < self.step or not step)
        ]
        for kind, module, step, value, given in self.kept:
            if module in modules:
                items.append(Item(kind, modules[module] or "the model", step, value[0], given, *value[2:]))
        names = {id(p): _clean(name) for name, p in model.named_parameters()}
        gradients = self.gradients
        if not self.steps:
            gradients = [(GRADIENT, 0, p, _local(p.grad)) for p in model.parameters() if p.grad is not None]
        items += [Item(k, names[id(p)], step, *value) for k, step, p, value in gradients if id(p) in names]
        last = max(1, self.step)
        items += [Item(AFTER, _clean(n), last, *_local(p)) for n, p in model.named_parameters()]
        return [item for item in items if item.value is not None]

    @property
    def step(self) -> int:
        return max(self.steps.values(), default=0)

    def _before(self, module: nn.Module, args: tuple) -> None:
        self.given.setdefault(module, []).append(_local(_tensor(args)))
        for name, parameter in module._parameters.items():
            if parameter is not None and (module, name, self.step) not in self.weights:
                self.weights[module, name, self.step] = _local(parameter)

    def _after(self, module: nn.Module, args: tuple, output: Any) -> None:
        given = self.given[module].pop()
        if (tensor := _tensor(output)) is None:
            return
        self.kept.append((OUTPUT, module, self.step, _local(tensor), given[0]))
        if tensor.requires_grad:
            tensor.register_hook(
                lambda gradient: self.kept.append((FLOWING, module, self.step, _local(gradient), None))
            )

    def _optimizer(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            # None moves a parameter as far as zeros do
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            self.gradients.append((GRADIENT, self.steps[optimizer], parameter, _local(_summed(gradient))))
        self.steps[optimizer] += 1

    def _clipped(self, parameters: Iterator[Tensor] | list[Tensor]) -> None:
        self.gradients += [
            (UNCLIPPED, self.step, p, _local(p.grad)) for p in parameters if p.grad is not None
        ]


def _local(tensor: Any) -> tuple:
    """A copy of this rank's part, nothing (what was given), where it begins, and whether it is an addend."""
    if tensor is None:
        return None, None, None, False
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        # A unit that is resharded by hand frees its memory and keeps its shape
        freed = tensor.untyped_storage().size() < tensor.numel() * tensor.element_size()
        return None if freed else tensor.clone(), None, None, False
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    partial = any(placement.is_partial() for placement in tensor.placements)
    return tensor.to_local().clone(), None, tuple(offset), partial


def _summed(gradient: Tensor) -> Tensor:
    """An addend that says so is summed by the optimizer's operators."""
    if not isinstance(gradient, DTensor) or not any(p.is_partial() for p in gradient.placements):
        return gradient
    return gradient.redistribute(
        placements=[Replicate() if p.is_partial() else p for p in gradient.placements]
    )


def _tensor(value: Any) -> Tensor | None:
    """The first tensor of numbers with a dimension in what a module takes or gives."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() and value.ndim else None
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return next((found for v in inner if (found := _tensor(v)) is not None), None)


def _clean(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


@contextlib.contextmanager
def _without_dropout() -> Iterator[None]:
    """Ranks draw other numbers than one device does, and are right."""
    dropout = F.dropout
    F.dropout = lambda input, p=0.5, training=True, inplace=False: input
    try:
        yield
    finally:
        F.dropout = dropout
