"""The course's one language for names of modules: what is cut, sharded, recomputed or adapted is named from outside.

A pattern is a name in which ``*`` stands for one part, or for some letters of a part: ``blocks.*`` is every block, and
not what is inside it. Where no whole name fits, the last parts of a name are enough: ``query``, ``attention.core``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that ``pattern`` means, in their order.

    >>> names = ["norm", "blocks", "blocks.0", "blocks.0.norm", "blocks.0.mlp", "blocks.0.mlp.up"]
    >>> [matching(pattern, names) for pattern in ("blocks.*", "norm", "mlp", "*.up", "blocks.up")]
    [['blocks.0'], ['norm'], ['blocks.0.mlp'], ['blocks.0.mlp.up'], []]
    """
    return [*_matching(pattern, tuple(names))]


@functools.lru_cache(256)  # whoever places a model asks for each pattern several times
def _matching(pattern: str, names: tuple[str, ...]) -> list[str]:
    wanted = pattern.split(".")
    parts = {name: name.split(".") for name in names}
    ends = [n for n, own in parts.items() if all(map(fnmatchcase, own[-len(wanted) :], wanted))]
    return [n for n in ends if len(parts[n]) == len(wanted)] or [
        n for n in ends if len(parts[n]) > len(wanted)
    ]


def find_modules(model: nn.Module, pattern: str) -> dict[str, nn.Module]:
    """The modules that ``pattern`` means, a shared one under its first name.

    Raises:
        ValueError: there is none.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    found = {name: modules[name] for name in matching(pattern, modules)}
    if not found:
        last = dict.fromkeys(name.rpartition(".")[2] for name in modules)  # all names would be long
        known = ", ".join(name for name in last if not name.isdigit())
        raise ValueError(
            f"no module of {type(model).__name__} is called {pattern!r}; its modules are called {known}"
        )
    return found


def replace_module(model: nn.Module, name: str, new: nn.Module) -> None:
    """``new`` in place of a module, under all names that it has."""
    old = model.get_submodule(name)
    for parent in list(model.modules()):
        if parent is new:  # it may hold the old one
            continue
        for child, module in parent._modules.items():
            if module is old:
                parent._modules[child] = new
