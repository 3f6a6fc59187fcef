"""Models that a run leaves traces in, their hooks, copies of their parameters: for the checks of chapters 01 and 03."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.models.resnet import ResNet18


class Counted(nn.Module):
    """A linear layer under two names, a norm, a dropout, random numbers; counts its own forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm, self.dropout = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.pair = nn.Sequential(self.wide, nn.Tanh())
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.dropout(self.norm(self.pair(self.wide(x)))) + torch.rand(6)


class Fragile(Counted):
    """Raises for inputs of more than three rows, at the end of its forward."""

    def forward(self, x: Tensor) -> Tensor:
        if len(result := super().forward(x)) > 3:
            raise RuntimeError("too many rows")
        return result


class Observed(nn.Module):
    """Keeps in buffers what it saw, as observers of quantisation do; the third gets a new tensor each time."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.dropout = nn.Linear(3, 5), nn.Dropout()
        self.register_buffer("largest", torch.zeros(3))
        self.register_buffer("calls", torch.tensor(0), persistent=False)
        self.register_buffer("rows", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.largest.copy_(torch.maximum(self.largest, x.detach().abs().amax(0)))
        self.calls.add_(1)
        self.rows = self.rows + len(x)
        return self.dropout(self.dense(x))


def resnet() -> nn.Module:
    model = ResNet18(10, 1, small_images=True, width=8)
    model.bn1.eval()  # one norm is in evaluation mode, as in fine-tuning
    model.conv1.requires_grad_(False)
    return model


def counted() -> nn.Module:
    model = Counted()
    nn.ModuleList([model.dropout, model.wide]).eval()  # `wide` is in `pair` as well
    model.wide.register_forward_hook(lambda *_: None)
    model(torch.randn(4, 6)).sum().backward()
    return model


def stacked() -> nn.Module:
    """Two layers whose weights are rows of one larger tensor, a frozen bias, and a parameter of the model itself."""
    together = torch.zeros(20, 6)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4))
    model[0].weight, model[1].weight = nn.Parameter(together[:6]), nn.Parameter(together[6:10])
    model[1].bias.requires_grad_(False)
    model.register_parameter("gain", nn.Parameter(torch.ones(1)))
    return model


def frozen(layers: nn.Sequential, place: int) -> nn.Sequential:
    layers[place].requires_grad_(False)
    return layers


def observed() -> nn.Module:
    model = nn.Sequential(Observed().bfloat16()).eval()
    model[0].dropout.train()  # as for uncertainty by dropout
    return model


def result_or_error(answer: Callable, model: nn.Module, case) -> tuple[Any, str]:
    """What the answer returns, and, where the model raises, what is wrong if its error does not reach the caller."""
    if not case.raises:
        return answer(model, *case.inputs), ""
    try:
        answer(model, *case.inputs)
    except RuntimeError:
        return (), ""
    return (), "its error does not reach the caller\n(an `except` or a `return` in the `finally` took it)"


class ParameterCopies(TorchDispatchMode):
    """Bytes of a model's parameters that are copied into new tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.of = {p.untyped_storage()._cdata for p in model.parameters()}  # the same for every view
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args: tuple = (), kwargs: dict | None = None):
        name = func.overloadpacket.__name__
        if name in ("clone", "_to_copy", "copy_"):
            source = args[name == "copy_"]
            self.bytes += source.nbytes * (source.untyped_storage()._cdata in self.of)
        return func(*args, **(kwargs or {}))


def hooks_of(model: nn.Module) -> list:
    """All hooks that a forward pass runs."""
    found = [hooks for m in model.modules() for hooks in (m._forward_pre_hooks, m._forward_hooks)]
    return [hook for hooks in found for hook in hooks.values()]


def changed_hooks(model: nn.Module, before: list) -> str:
    """What is wrong with the hooks, compared with those before; empty where nothing is."""
    after = hooks_of(model)
    left = sum(all(hook is not old for old in before) for hook in after)
    gone = sum(all(hook is not new for new in after) for hook in before)
    return f"hooks: {left} of its own are left, and {gone} of the caller's are gone" if left or gone else ""
