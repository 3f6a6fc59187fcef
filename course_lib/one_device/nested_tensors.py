"""The tensors inside what a module takes or returns: tuples, lists, dicts, dataclasses, and nests of them.

PyTorch's own ``torch.utils._pytree`` knows the built-in containers and those that a library registers with it. It
takes a dataclass, or a subclass of dict or list, for a leaf, so a model that returns one (as those of Hugging
Face do) would seem to return no tensor at all. The two functions here look into these as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

T = TypeVar("T")


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors inside ``value``, in order; one that stands there twice is listed twice."""
    return _leaves(value, Tensor)


def map_tensors(function: Callable[[T], Any], value: Any, kind: type[T] = Tensor) -> Any:
    """A copy of ``value`` in which ``function(tensor)`` stands for each tensor.

    A dataclass, or a container that PyTorch does not know, is the same object as before where it holds no tensor.

    Args:
        kind: replace objects of this type instead of tensors.
    """

    def replace(leaf: Any) -> Any:
        if isinstance(leaf, kind):
            return function(leaf)
        parts = _parts(leaf)
        if not parts or not _leaves(parts, kind):
            return leaf
        return _with_parts(leaf, map_tensors(function, parts, kind))

    return tree_map(replace, value)


def _leaves(value: Any, kind: type[T]) -> list[T]:
    found = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, kind):
            found.append(leaf)
        elif parts := _parts(leaf):
            found += _leaves(parts, kind)
    return found


def _parts(leaf: Any) -> dict[Any, Any]:
    """What is inside a container that PyTorch does not know, by field, key or index; empty for anything else."""
    if is_dataclass(leaf) and not isinstance(leaf, type):
        return {field.name: getattr(leaf, field.name) for field in fields(leaf) if hasattr(leaf, field.name)}
    if isinstance(leaf, Mapping):
        return dict(leaf)
    if isinstance(leaf, (list, tuple)):
        return dict(enumerate(leaf))
    return {}


def _with_parts(leaf: Any, parts: dict[Any, Any]) -> Any:
    """A copy of ``leaf`` that holds ``parts`` instead of its own."""
    if isinstance(leaf, tuple):
        return type(leaf)(parts.values())
    new = copy(leaf)
    for name, part in parts.items():
        if not is_dataclass(leaf):
            new[name] = part
        elif type(leaf).__dataclass_params__.frozen:
            object.__setattr__(new, name, part)
        else:
            setattr(new, name, part)
    return new
