"""Which parameter belongs to which unit of FSDP, decided before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from course_lib.models.names import find_modules, matching

ROOT = ""  # the model's own name among its modules

Units = Iterable[str] | Callable[[str, nn.Module], bool]
Owners = list[tuple[nn.Module, str]]
Kinds = dict[tuple[bool, torch.dtype], list[tuple[str, Owners, nn.Parameter]]]


def deal_parameters(
    model: nn.Module, units: Units, *, left_out: Iterable[nn.Parameter] = ()
) -> dict[str, tuple[nn.Module, Kinds]]:
    """Each unit with its module and its parameters; the root comes last.

    What is in no unit, and a parameter that several units use, belongs to the root.

    Args:
        left_out: parameters that no unit gets.

    Returns:
        The name of each unit -> its module, and for each kind (trainable?, dtype) what can share a flat buffer: the
        parameters with their names and with the modules that use them.

    Raises:
        ValueError: no module matches; units overlap; one has no forward.
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

    found: dict[nn.Parameter, tuple[str, Owners]] = {}
    left_out = set(left_out)
    for path, module in model.named_modules():
        for attribute, p in module._parameters.items():
            if p is not None and p not in left_out:
                found.setdefault(p, (f"{path}.{attribute}".lstrip("."), []))[1].append((module, attribute))

    dealt: dict[str, tuple[nn.Module, Kinds]] = {
        name: (module, {}) for name, module in (chosen | {ROOT: model}).items()
    }
    for p, (name, owners) in found.items():
        users = {unit_of.get(module, ROOT) for module, _ in owners}
        _, kinds = dealt[users.pop() if len(users) == 1 else ROOT]
        kinds.setdefault((p.requires_grad, p.dtype), []).append((name, owners, p))
    return dealt


def find_units(model: nn.Module, units: Units) -> dict[str, nn.Module]:
    """The submodules that ``units`` names, in the model's order."""
    modules = {name: module for name, module in model.named_modules() if name}
    if callable(units):
        chosen = {name: module for name, module in modules.items() if units(name, module)}
        if not chosen:
            raise ValueError(f"the function given as units chooses none of {', '.join(modules)}")
    else:
        chosen = {}
        for pattern in [units] if isinstance(units, str) else units:
            chosen |= find_modules(model, pattern)
    for name, module in chosen.items():
        if type(module).forward is nn.Module.forward:
            raise ValueError(
                f"unit {name} is a {type(module).__name__}, which is never called: name what it holds, {name}.*"
            )
    return {name: module for name, module in modules.items() if name in chosen}


def find_parameters(model: nn.Module, patterns: Iterable[str]) -> list[nn.Parameter]:
    """The parameters that ``patterns`` name.

    Raises:
        ValueError: a name that no parameter has.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    found: dict[nn.Parameter, None] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        called = matching(pattern, named)
        if not called:
            raise ValueError(f"no parameter is called {pattern!r}; there are {', '.join(named)}")
        found |= dict.fromkeys(named[name] for name in called)
    return list(found)


def setting_for(unit: str, model: nn.Module, settings: Any) -> Any:
    """A unit's own setting: ``settings`` itself, or the first entry of a mapping whose pattern names the unit."""
    if not isinstance(settings, Mapping):
        return settings
    names = [name for name, _ in model.named_modules()]
    return next((value for pattern, value in settings.items() if unit in matching(pattern, names)), None)
