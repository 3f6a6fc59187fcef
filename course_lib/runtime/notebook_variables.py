"""Which variables of the notebook a cell on the ranks needs, and how they are sent.

Functions, classes and modules that the cell names, and those that they name in turn, are sent by themselves.
Data is sent only on request (``--with``). On the rank a function of the notebook sees the rank's variables.
"""

from __future__ import annotations

import ast
import dis
import io
import types
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle

from course_lib.runtime import cell

BY_THEMSELVES = (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)


def names_in(source: str, filename: str) -> set[str]:
    """The names that the code reads; ``SyntaxError`` if it is not Python."""
    nodes = ast.walk(ast.parse(source, filename))
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def pickle_data(names: list[str], notebook: dict[str, Any]) -> tuple[bytes, set[str]]:
    """The variables ``names`` in one piece, so that a model and its optimizer still share parameters.

    Returns the bytes, and the names that the code among the data reads.
    """
    if absent := [name for name in names if name not in notebook]:
        raise ValueError(f"--with {', '.join(absent)}: the notebook has no such variable")
    return _pickle({name: notebook[name] for name in names}, notebook)


def pickle_needed(
    names: set[str], notebook: dict[str, Any], known: Mapping[str, Any]
) -> tuple[list[bytes], dict]:
    """Functions, classes and modules among ``names``, and all that they need, unless the ranks have them already.

    Args:
        names: what the cell reads.
        notebook: the notebook's variables.
        known: what the ranks have received before; a function that was defined again is sent again.

    Returns:
        Pickled dicts in the order in which they must be read, and all that they hold.
    """
    pieces: list[bytes] = []
    sent: dict[str, Any] = {}
    while names := {n for n in names if n not in sent and isinstance(notebook.get(n), BY_THEMSELVES)}:
        found = {name: notebook[name] for name in sorted(names)}
        sent |= found
        new = {name: value for name, value in found.items() if known.get(name) is not value}
        names = set().union(*(_names_in_value(value) for value in found.values()))
        if new:
            pickled, more = _pickle(new, notebook)
            pieces.insert(0, pickled)
            names |= more
    return pieces, sent


def _pickle(values: dict[str, Any], notebook: dict[str, Any]) -> tuple[bytes, set[str]]:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, notebook)
    try:
        pickler.dump(values)
    except Exception as error:
        raise ValueError(
            f"{', '.join(values)} cannot be sent to the ranks ({error}): make files, locks, generators and process "
            "groups in a cell of the ranks"
        ) from error
    return buffer.getvalue(), pickler.names


class _RankVariables:
    """Stands for the notebook's globals while a function is sent; on the rank it becomes the rank's variables."""

    def __reduce__(self) -> tuple:
        return cell.variables, ()


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, but functions of the notebook take their code along and none of the notebook's data."""

    def __init__(self, buffer: io.BytesIO, notebook: dict[str, Any]) -> None:
        super().__init__(buffer)
        self.notebook = notebook
        self.names: set[str] = set()  # what the functions read

    def reducer_override(self, obj: Any) -> Any:
        reduced: Any = super().reducer_override(obj)
        if reduced is NotImplemented or not isinstance(obj, types.FunctionType):
            return reduced
        if obj.__globals__ is not self.notebook:
            return reduced
        self.names.update(_globals_of(obj.__code__))
        make, (code, _, *rest), (attributes, slots), *setter = reduced
        slots = {**slots, "__globals__": {}}
        return make, (code, _RankVariables(), *rest), (attributes, slots), *setter


def _globals_of(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_of(constant)


def _names_in_value(value: Any) -> set[str]:
    """What a known function reads: one that it calls may have been defined again."""
    return set(_globals_of(value.__code__)) if isinstance(value, types.FunctionType) else set()
