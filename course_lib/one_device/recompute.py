"""Recomputation: do not keep what autograd saves, but run the forward again when backward needs it.

Also known as activation checkpointing (Chen et al., arXiv:1604.06174). For one more forward a layer keeps its
input only, 2 sbh bytes of the sbh (34 + 5as/h) that a GPT layer saves (s: sequence, b: batch, h: hidden size,
a: heads). Selective recomputation (Korthikanti et al., arXiv:2205.05198) repeats attention without its linear
layers, which saves many bytes and costs few FLOPs.

Autograd passes every tensor that it would save to a function ``pack``, keeps what ``pack`` returns, and passes
that to ``unpack`` when backward needs the tensor. So ``pack`` returns a number instead of the tensor, and
``unpack`` runs the forward again and takes the saved tensor with this number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.models.anatomy import LAYERS
from course_lib.models.names import matching
from course_lib.one_device.forward_state import ForwardState
from course_lib.one_device.nested_tensors import map_tensors

T = TypeVar("T")


def checkpoint(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """``function(*args, **kwargs)``, keeping its arguments instead of what its backward needs.

    Arguments and results may be anything, nested or not; gradients also reach tensors that ``function`` takes
    from elsewhere, such as a module's parameters. They equal those without recomputation bit for bit, because
    the second forward runs in the state of the first: random generators, autocast, and the buffers of a module
    (BatchNorm's running averages are updated once).

    The second forward stops at the last tensor that backward needs. It is a whole forward when the last
    operation saves something, as dropout does; a linear layer at the end is not repeated.

    Raises (in backward):
        RuntimeError: an argument was changed in place, or ``function`` computed something else the second time.
    """
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    region = Region(function, args, kwargs)
    with saved_tensors_hooks(region.pack, region.unpack):
        return function(*args, **kwargs)


class Region:
    """One call of ``checkpoint``. The graph of the call holds it, so it is freed together with the graph."""

    def __init__(self, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> None:
        self.function = function
        self.state = ForwardState(function)
        # Autograd keeps the tensors among the arguments, as what one operation saved. The result of this operation
        # must stay alive, too: in torch 2.11 an operation whose result is freed forgets what it saved.
        tensors: list[Tensor] = []

        def number_of(tensor: Tensor) -> TensorNumber:
            tensors.append(tensor)
            return TensorNumber(len(tensors) - 1)

        self.arguments = map_tensors(number_of, (args, kwargs))
        self.kept_arguments = KeepArguments.apply(torch.empty(0, requires_grad=True), *tensors)
        self.saved: list[tuple] = []  # shape, dtype and device of each tensor that autograd would have kept
        self.recomputed: dict[int, Tensor] = {}

    def pack(self, tensor: Tensor) -> int:
        """First forward: note what is saved, and keep only its number."""
        self.saved.append(kind_of(tensor))
        return len(self.saved) - 1

    def unpack(self, number: int) -> Tensor:
        """Backward: the first request runs the forward again, and each tensor is handed out once."""
        if number not in self.recomputed:
            self.recompute()
        return self.recomputed.pop(number)

    def recompute(self) -> None:
        tensors = self.kept_arguments.grad_fn.saved_tensors
        args, kwargs = map_tensors(lambda place: tensors[place.number], self.arguments, kind=TensorNumber)
        self.recomputed.clear()
        count = 0

        def pack(tensor: Tensor) -> None:
            nonlocal count
            if kind_of(tensor) != self.saved[count]:
                self.raise_difference(count, tensor)
            self.recomputed[count] = tensor.detach()
            count += 1
            if count == len(self.saved):
                raise AllRecomputed

        with self.state.restored(), saved_tensors_hooks(pack, no_backward), suppress(AllRecomputed):
            self.function(*args, **kwargs)
        if count < len(self.saved):
            self.raise_difference(count, None)

    def raise_difference(self, number: int, tensor: Tensor | None) -> None:
        raise RuntimeError(
            f"the recomputed forward differs from the first: saved tensor {number + 1} of {len(self.saved)} was "
            f"{describe(self.saved[number])}, now {describe(None if tensor is None else kind_of(tensor))}"
        )


class KeepArguments(torch.autograd.Function):
    """Saves the arguments as any operation saves what it needs.

    So autograd reports an argument that is changed in place, a recorder of saved tensors counts them, and a
    checkpoint around this one recomputes them too. Its backward never runs.
    """

    @staticmethod
    def forward(ctx: Any, _: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)


@dataclass(frozen=True)
class TensorNumber:
    """Stands in the nested arguments in place of a tensor."""

    number: int


class AllRecomputed(Exception):  # noqa: N818
    """Ends a second forward when all that backward needs is there."""


def no_backward(_: None) -> Tensor:
    raise RuntimeError("the graph of a recomputed forward has no backward of its own")


def kind_of(tensor: Tensor) -> tuple:
    return tensor.shape, tensor.dtype, tensor.device


def describe(kind: tuple | None) -> str:
    return "missing" if kind is None else f"{str(kind[1]).removeprefix('torch.')}{list(kind[0])} on {kind[2]}"


# ---- applied to a model from outside ----------------------------------------------------------------------

RECOMPUTE = {  # names of submodules
    "full": (*LAYERS, "layer[1-4].*"),  # the last: ResNet
    "selective": ("core",),
}


def apply_recompute(model: nn.Module, what: str | Iterable[str]) -> list[str]:
    """Recompute some submodules of ``model`` in its backward; returns their names.

    The model computes, and is saved and loaded, as before. ``remove_recompute`` undoes it.

    Args:
        what: ``"full"``: every block (layer); ``"selective"``: the core of every attention, between its linear
            layers; or names of submodules (``"mlp"``, ``"blocks.*.mlp"``, see ``models/names.py``). Of modules
            inside each other only the outermost is recomputed.

    Raises:
        ValueError: no submodule has such a name.
    """
    patterns = RECOMPUTE.get(what, (what,)) if isinstance(what, str) else tuple(what)
    chosen = outermost(model, patterns)
    modules = dict(model.named_modules())
    for name in chosen:
        # forward becomes an attribute of the instance, so hooks, names and parameters stay as they are.
        modules[name].forward = partial(checkpoint, modules[name].forward)
    return chosen


def outermost(model: nn.Module, patterns: Iterable[str]) -> list[str]:
    """The names of the submodules that match, in order; of some inside each other the outermost.

    Raises:
        ValueError: no submodule has such a name.
    """
    modules = [name for name, _ in model.named_modules() if name]
    named = {name for pattern in patterns for name in matching(pattern, modules)}
    chosen: list[str] = []
    for name in modules:  # parents come before their children
        inside = any(name.startswith(f"{outer}.") for outer in chosen)
        if not inside and name in named:
            chosen.append(name)
    if not chosen:
        raise ValueError(
            f"{type(model).__name__} has no submodule that matches {' or '.join(patterns)}; "
            f"it has {', '.join(modules)}"
        )
    return chosen


def remove_recompute(model: nn.Module) -> None:
    """Undo every ``apply_recompute``."""
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, partial) and forward.func is checkpoint:
            del module.forward
