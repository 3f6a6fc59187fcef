"""Runs the code of a notebook cell on a rank, with variables that stay for the next cell (``%%ranks``)."""

from __future__ import annotations

import ast
import sys
import types
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from course_lib.runtime.devices import current_device

# What a cell sees as its globals. As __main__ it behaves as a notebook does: its classes can be pickled.
_main = types.ModuleType("__main__")
_sent: dict[str, Any] = {}  # functions, classes and modules that came from the notebook, as they came
_given: set[str] = set()  # the names of prepare()


def variables() -> dict[str, Any]:
    """The variables of this rank."""
    return _main.__dict__


def prepare(mesh: DeviceMesh | None = None) -> None:
    """Give the cells ``torch``, ``dist``, ``rank``, ``world_size``, ``device``, and ``mesh`` if there is one."""
    sys.modules["__main__"] = _main
    names = {"torch": torch, "dist": dist, "rank": dist.get_rank(), "world_size": dist.get_world_size()}
    names |= {"device": current_device()}
    for name, value in names.items():
        variables().setdefault(name, value)
    if mesh is not None:
        variables()["mesh"] = mesh
    _given.update(names, {"mesh", "__builtins__"})


def run_cell(source: str, filename: str, needed: list[bytes], data: bytes, get: list[str]) -> dict[str, Any]:
    """Run the cell and print the value of its last expression, if it has one.

    Args:
        source: the code; its line numbers are those of the notebook cell.
        filename: by which tracebacks find the source.
        needed: pickled dicts of functions, classes and modules of the notebook. A variable of this rank with the
            same name goes first.
        data: a pickled dict of variables to set.
        get: names whose values are returned.
    """
    for pickled in needed:
        for name, value in cloudpickle.loads(pickled).items():
            if name not in variables() or variables()[name] is _sent.get(name):
                variables()[name] = _sent[name] = value
    variables().update(cloudpickle.loads(data))
    tree = ast.parse(source, filename)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, filename, "exec"), variables())
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), filename, "eval"), variables())
        if value is not None:
            variables()["_"] = value
            print(repr(value))
    if absent := [name for name in get if name not in variables()]:
        raise NameError(f"--get {', '.join(absent)}: this rank has no such variable", name=absent[0])
    return {name: variables()[name] for name in get}


def own_names() -> list[str]:
    """The names of the variables that cells have made on this rank."""
    return sorted(
        name
        for name, value in variables().items()
        if not name.startswith("_") and name not in _given and not isinstance(value, types.ModuleType)
    )
