"""Which parameters are trained: all others are frozen, so that they have no gradients and no optimizer states."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import nn

from course_lib.models.names import matching


@dataclass(frozen=True)
class ParameterCount:
    """How many parameters are trained, of how many; a tensor with two names counts once."""

    trainable: int
    total: int

    @property
    def percent(self) -> float:
        return 100 * self.trainable / self.total

    def __str__(self) -> str:
        return f"{self.trainable:,} of {self.total:,} parameters are trained ({self.percent:.2f} %)"


def count_parameters(model: nn.Module) -> ParameterCount:
    """Works on the meta device, too, where a model of any size takes no memory."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return ParameterCount(sum(n for n, trained in sizes if trained), sum(n for n, _ in sizes))


def mark_only_as_trainable(
    model: nn.Module, trained: Iterable[str] | Callable[[str, nn.Parameter], bool]
) -> ParameterCount:
    """Train the parameters that are named, and freeze all others.

    Args:
        trained: names of modules or of parameters (``"classifier"``, ``"layer.*.output.dense.bias"``; see
            ``models/names.py``), or a function of a parameter's name and the parameter. A tensor that has
            several names is trained if one of them is chosen.

    Raises:
        ValueError: a name that fits nothing, or nothing is chosen; the model is as it was.
    """
    named = list(model.named_parameters(remove_duplicate=False))
    if callable(trained):
        chosen = {p for name, p in named if trained(name, p)}
    else:
        patterns = [trained] if isinstance(trained, str) else list(trained)
        chosen = {p for pattern in patterns for p in parameters_called(model, pattern)}
    if not chosen:
        raise ValueError(f"no parameter of {type(model).__name__} is chosen, so nothing would be trained")
    for _, p in named:
        p.requires_grad_(p in chosen)
        if p not in chosen:
            p.grad = None  # an optimizer would still apply it
    return count_parameters(model)


def mark_only_biases_as_trainable(model: nn.Module, also: Iterable[str] = ()) -> ParameterCount:
    """BitFit (Ben Zaken et al., arXiv:2106.10199): all biases, those of norms too, and what ``also`` names."""
    others = {p for pattern in also for p in parameters_called(model, pattern)}
    return mark_only_as_trainable(model, lambda name, p: is_bias(name) or p in others)


def is_bias(name: str) -> bool:
    return name.rpartition(".")[2] == "bias"


def parameters_called(model: nn.Module, pattern: str) -> list[nn.Parameter]:
    """The parameters with this name, and those in modules with this name.

    Raises:
        ValueError: there is none.
    """
    named = {name: (p, _prefixes(name)) for name, p in model.named_parameters(remove_duplicate=False)}
    called = {*matching(pattern, dict.fromkeys(prefix for _, around in named.values() for prefix in around))}
    found = [p for p, around in named.values() if not called.isdisjoint(around)]
    if not found:
        raise ValueError(f"no parameter and no module of {type(model).__name__} is called {pattern!r}")
    return found


def _prefixes(name: str) -> list[str]:
    """``a.b.c`` -> ``a``, ``a.b``, ``a.b.c``."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
