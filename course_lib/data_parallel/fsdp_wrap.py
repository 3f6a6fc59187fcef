"""Which parameter belongs to which unit of FSDP, decided before anything is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

import torch
from torch import nn

from course_lib.data_parallel.fsdp_unit import Slot

ROOT = ""  # the model's own name among its modules

Kinds = dict[tuple[bool, torch.dtype], list[Slot]]  # (trainable?, dtype) -> what can share a buffer


def deal(
    model: nn.Module, units: Iterable[str] | Callable[[str, nn.Module], bool]
) -> dict[str, tuple[nn.Module, Kinds]]:
    """Each unit with its module and its parameters, kind by kind; the root comes last.

    Raises:
        ValueError: no module matches; units overlap; one has no forward, or nothing to train.
    """
    chosen = find_units(model, units)
    unit_of: dict[nn.Module, str] = {}
    for name, module in chosen.items():
        for inner in module.modules():
            if inner in unit_of:
                raise ValueError(
                    f"units must not overlap, and {unit_of[inner]} and {name} share a {type(inner).__name__}"
                )
            unit_of[inner] = name

    slots: dict[nn.Parameter, Slot] = {}
    for path, module in model.named_modules():
        for attribute, p in module._parameters.items():
            if p is not None:
                name = f"{path}.{attribute}".lstrip(".")
                slots.setdefault(p, Slot(name, [], p)).owners.append((module, attribute))

    dealt: dict[str, tuple[nn.Module, Kinds]] = {
        name: (m, {}) for name, m in (chosen | {ROOT: model}).items()
    }
    for p, slot in slots.items():
        users = {unit_of.get(module, ROOT) for module, _ in slot.owners}
        _, kinds = dealt[users.pop() if len(users) == 1 else ROOT]
        kinds.setdefault((p.requires_grad, p.dtype), []).append(slot)
    for name in chosen:
        if not any(trains for trains, _ in dealt[name][1]):
            raise ValueError(
                f"unit {name} has no parameter to train, so no gradient would tell that its backward is over: "
                "leave it to the root, or make it part of a unit that trains"
            )
    return dealt


def find_units(
    model: nn.Module, units: Iterable[str] | Callable[[str, nn.Module], bool]
) -> dict[str, nn.Module]:
    """The submodules that ``units`` names, in the model's order."""
    modules = {name: module for name, module in model.named_modules() if name}
    if callable(units):
        chosen = {name: module for name, module in modules.items() if units(name, module)}
        if not chosen:
            raise ValueError(f"the function given as units chooses none of {', '.join(modules)}")
    else:
        chosen = {}
        for pattern in [units] if isinstance(units, str) else units:
            found = {name: module for name, module in modules.items() if _matches(name, pattern)}
            if not found:
                raise ValueError(
                    f"no module of {type(model).__name__} is called {pattern!r}; it has {', '.join(modules)}"
                )
            chosen |= found
    for name, module in chosen.items():
        if type(module).forward is nn.Module.forward:
            raise ValueError(
                f"unit {name} is a {type(module).__name__}, which is never called: name what it holds, {name}.*"
            )
    return {name: module for name, module in modules.items() if name in chosen}


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
