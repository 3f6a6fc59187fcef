"""Modules of a model found by patterns, and put in the place of others: what is adapted is named from outside."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn


def name_matches(name: str, pattern: str) -> bool:
    """Whether ``pattern`` is the name, or the last parts of the name; ``*`` stands for one part.

    >>> [name_matches("encoder.layer.3.self.query", p) for p in ("query", "layer.*.self.query", "layer.query")]
    [True, True, False]
    """
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) >= len(wanted) and all(map(fnmatchcase, parts[-len(wanted) :], wanted))


def find_modules(model: nn.Module, pattern: str) -> dict[str, nn.Module]:
    """The modules that ``pattern`` names, a shared one under its first name.

    Raises:
        ValueError: there is none.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    found = {name: module for name, module in modules.items() if name_matches(name, pattern)}
    if not found:
        raise ValueError(f"no module of {type(model).__name__} is called {pattern!r}; {known_names(modules)}")
    return found


def known_names(names: Iterable[str]) -> str:
    """The last parts of the names, each once, for a message that must stay short."""
    last = dict.fromkeys(name.rpartition(".")[2] for name in names)
    return f"its modules are called {', '.join(name for name in last if not name.isdigit())}"


def replace_module(model: nn.Module, name: str, new: nn.Module) -> None:
    """``new`` in place of a module, under all names that it has."""
    old = model.get_submodule(name)
    for parent in list(model.modules()):
        if parent is new:  # it may hold the old one
            continue
        for child, module in parent._modules.items():
            if module is old:
                parent._modules[child] = new
