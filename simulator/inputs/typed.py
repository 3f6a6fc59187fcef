"""Settings from a file, held to the types that they must have; what does not fit is told in one sentence.

It needs msgspec, which a browser has not: what also runs there imports this module where a file is read.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from sys import float_info
from typing import Annotated, Any

import msgspec
from msgspec import Meta, inspect

MOST = 10**9
Count = Annotated[int, Meta(ge=1, le=MOST)]
CountOrZero = Annotated[int, Meta(ge=0, le=MOST)]
Whole = Annotated[int, Meta(ge=-MOST, le=MOST)]
Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
Positive = Annotated[float, Meta(gt=0, le=float_info.max)]
PositiveOrInfinite = Annotated[float, Meta(gt=0)]
Points = Annotated[list[tuple[Positive, Positive]], Meta(min_length=1)]  # (size, part)
Text = Annotated[str, Meta(min_length=1, pattern=r"\S")]

NAMES = {
    inspect.StrType: "a text",
    inspect.BoolType: "true or false",
    inspect.NoneType: "null",
    inspect.DictType: "a table",
    inspect.StructType: "a table",
}


def read_toml(path: str | Path) -> dict[str, Any]:
    """What a TOML file says.

    Raises:
        ValueError: there is no such file, it cannot be read, or it is no TOML.
    """
    return _read(path, "TOML", tomllib.loads)


def read_json(path: str | Path) -> Any:
    """What a JSON file says; errors as ``read_toml``'s."""
    return _read(path, "JSON", json.loads)


def _read(path: str | Path, what: str, loads: Callable[[str], Any]) -> Any:
    try:
        return loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply: a few tables and lists are accepted") from None
    except ValueError as error:  # of the format, of UTF-8, or a number of more digits than Python reads
        raise ValueError(f"{path} is not a {what} file: {error}") from None


def table(name: str, keys: Mapping[str, Any], required: tuple[str, ...] = ()) -> type:
    """The type of a table with these keys and no others; those that are not ``required`` may be left out."""
    must = [(key, keys[key]) for key in required]
    may = [(key, kind, None) for key, kind in keys.items() if key not in required]
    return msgspec.defstruct(name, must + may, forbid_unknown_fields=True)


def check_types(kind: Any, values: Any, where: str = "the file") -> None:
    """``values`` as TOML or JSON gives them fit the type, whose numbers may have bounds (``Count``).

    Args:
        where: what ``values`` is, in the sentence; the keys of a table stand behind it.

    Raises:
        ValueError: the key, its value and what would be accepted.
    """
    try:
        msgspec.convert(values, kind)
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply: a few tables and lists are accepted") from None
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise ValueError(
            _sentence(message, path.rstrip("`"), inspect.type_info(kind), values, where)
        ) from None


def _sentence(message: str, path: str, info: inspect.Type, value: Any, where: str) -> str:
    """``path`` is msgspec's: ``.model.layers[2]``."""
    name = "" if where == "the file" else where
    for key, place in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
        info = _inside(info, key)
        value = value[key] if key else value[int(place)]
        name = (f"{name}.{key}" if name else key) if key else f"{name}[{place}]"
    name = name or where
    if "unknown field" in message:
        assert isinstance(info, inspect.StructType)
        keys = ", ".join(sorted(field.encode_name for field in info.fields))
        return f"{name} has no key {message.split('`')[1]}; its keys are {keys}"
    if "missing required field" in message:
        missing = message.split("`")[1]
        return f"{missing if name == 'the file' else f'{name}.{missing}'} is missing"
    accepted = _accepted(info)
    if isinstance(info, inspect.IntType) and isinstance(value, int) and value > MOST:
        accepted += f" and at most {MOST:,}"
    return f"{name} must be {accepted}, not {_short(value)}"


def _inside(info: inspect.Type, key: str) -> inspect.Type:
    for kind in info.types if isinstance(info, inspect.UnionType) else (info,):
        if key and isinstance(kind, inspect.StructType):
            return next(field.type for field in kind.fields if field.encode_name == key)
        if not key and isinstance(kind, inspect.ListType):
            return kind.item_type
        if not key and isinstance(kind, inspect.TupleType):
            return kind.item_types[0]
    return info


def _accepted(info: inspect.Type) -> str:
    match info:
        case inspect.UnionType():
            return " or ".join(map(_accepted, info.types))
        case inspect.LiteralType():
            one_of = "one of " * (len(info.values) > 1)
            return one_of + ", ".join(map(str, info.values))
        case inspect.IntType():
            return "a whole number" + ("" if info.ge in (None, -MOST) else f" of at least {info.ge}")
        case inspect.FloatType():
            finite = "a finite number" if info.le else "a number"
            return finite + (" more than 0" if info.gt == 0 else "")
        case inspect.TupleType():
            return f"a list of {len(info.item_types)} items, each {_accepted(info.item_types[0])}"
        case inspect.ListType():
            return f"a list, each item {_accepted(info.item_type)}" + ", at least one" * bool(info.min_length)
        case inspect.StrType() if info.min_length:
            return "a text that is not empty"
    return NAMES[type(info)]


def _short(value: Any) -> str:
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # more digits, or tables in tables, than Python writes
        return f"a {type(value).__name__} too long to show"
    return shown if len(shown) <= 80 else f"{shown[:60]}… ({len(shown)} characters)"
