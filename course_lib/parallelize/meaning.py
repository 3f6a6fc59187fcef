"""What gives weights their meaning beside names and shapes: heads, epsilons, the scale of LoRA, the kind of optimizer.

The same weights with 4 heads or with 2 are two models, and no shape tells them apart.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import nn
from torch.optim import Optimizer

# Settings that may change between two parts of a training: for these the weights mean the same.
HARMLESS = ("p", "inplace", "max_length", "max_position_embeddings", "merge_on_eval")
KINDS = ("momentum", "nesterov", "amsgrad", "centered")  # an optimizer has other states with and without them


def meaning_of(model: nn.Module) -> dict[str, Any]:
    """By names such as ``blocks.0.attention.config.num_heads``: the class and the plain settings of each module."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        if path.rpartition(".")[2] == "core":
            continue  # of attention: it has no weights, and any kernel computes the same
        found[path] = type(module).__name__
        for name, value in vars(module).items():
            if not name.startswith("_") and name != "training":
                found |= _plain(f"{path}.{name}" if path else name, value)
    return found


def _plain(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, FunctionType | BuiltinFunctionType):
        return {name: value.__name__}
    if is_dataclass(value) and not isinstance(value, type):
        inner = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {key: v for field, one in inner for key, v in _plain(f"{name}.{field}", one).items()}
    if isinstance(value, tuple):
        return {name: list(value)} if all(_plain(name, one) == {name: one} for one in value) else {}
    return {name: value} if value is None or isinstance(value, bool | int | float | str) else {}


def differences(there: dict[str, Any], here: dict[str, Any]) -> tuple[list[str], list[str]]:
    """As texts: those that change what the weights mean, and the others."""
    changed, harmless = [], []
    for name in here | there:
        if (old := there.get(name, "missing")) != (new := here.get(name, "missing")):
            kind = harmless if name.rpartition(".")[2] in HARMLESS or "dropout" in name else changed
            kind.append(f"{name or 'the model'} is {old} there, and {new} here")
    return changed, harmless


def listed(texts: list[str]) -> str:
    more = f"; and {len(texts) - 3} more" if len(texts) > 3 else ""
    return "; ".join(texts[:3]) + more


def kind_of_optimizer(optimizer: Optimizer) -> str:
    """``SGD with momentum``: optimizers of one kind have the same states."""
    settings = [
        key
        for key in KINDS
        if any(value for g in optimizer.param_groups for k, value in g.items() if k == key)
    ]
    name = type(getattr(optimizer, "optimizer", optimizer)).__name__  # ZeRO's own stands around the real one
    return f"{name} with {' and '.join(settings)}" if settings else name
