"""What a number must be before anything is computed with it; if it is not, one sentence names it and says so.

A NaN passes most comparisons unnoticed (``nan <= 0`` is False) and makes every figure behind it NaN, and ``True``
counts as 1. So the functions that the simulator offers ask here first. Each check takes its numbers by name, as
the caller knows them: ``at_least(1, ranks=ranks)``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from numbers import Integral, Real
from typing import Any


def at_least(smallest: int, **counts: int) -> None:
    """Each is a whole number of at least ``smallest``: no bool, and no float, not even 4.0."""
    for name, value in counts.items():
        if not (_is_whole(value) and value >= smallest):
            refuse(name, f"a whole number of at least {smallest}", value)


def index(count: int, **places: int) -> None:
    """Each is a place among ``count``: a whole number from 0 on. Negative ones do not count from the end."""
    for name, value in places.items():
        if not (_is_whole(value) and 0 <= value < count):
            refuse(name, f"a whole number between 0 and {count - 1}", value)


def not_negative(**amounts: float) -> None:
    """Each is a finite number of 0 or more."""
    for name, value in amounts.items():
        if not (is_number(value) and 0 <= value < inf):
            refuse(name, "a number of at least 0", value)


def positive(**amounts: float) -> None:
    """Each is a finite number above 0."""
    for name, value in amounts.items():
        if not (is_number(value) and 0 < value < inf):
            refuse(name, "a number more than 0", value)


def positive_or_infinite(**amounts: float) -> None:
    """Each is above 0; infinity stands for a rate that costs no time, or a memory that is never full."""
    for name, value in amounts.items():
        if not (is_number(value) and value > 0):
            refuse(name, "a number more than 0, or infinity", value)


def finite(**numbers: float) -> None:
    """Each is a number, of either sign, that is neither infinite nor NaN."""
    for name, value in numbers.items():
        if not (is_number(value) and -inf < value < inf):
            refuse(name, "a finite number", value)


def part(**parts: float) -> None:
    """Each is a part of a whole, more than nothing: in (0, 1]."""
    for name, value in parts.items():
        if not (is_number(value) and 0 < value <= 1):
            refuse(name, "in (0, 1]", value)


def amounts(length: int | None = None, /, **lists: Collection[float]) -> None:
    """Each is a list of finite numbers of 0 or more, ``length`` of them if that is given."""
    for name, values in lists.items():
        if not hasattr(values, "__len__") or isinstance(values, str | bytes):
            refuse(name, "a list of numbers", values)
        if length is not None and len(values) != length:
            refuse(name, f"a list of {length} numbers", list(values))
        for value in values:
            if not (is_number(value) and 0 <= value < inf):
                refuse(f"each of {name}", "a number of at least 0", value)


def speeds_of(speeds: Sequence[float] | None, ranks: int) -> Sequence[float]:
    """The speeds as given, one a rank, each finite and above 0; None: 1 for every rank."""
    if speeds is None:
        return [1.0] * ranks
    if not hasattr(speeds, "__len__") or len(speeds) != ranks:
        refuse("speeds", f"{ranks} positive numbers, one a rank", speeds)
    for speed in speeds:
        if not (is_number(speed) and 0 < speed < inf):
            refuse("speeds", f"{ranks} positive numbers, one a rank", list(speeds))
    return speeds


def one_of(name: str, value: object, accepted: Collection[Any]) -> None:
    """``value`` is among the names that are accepted."""
    if value not in accepted:
        raise ValueError(f"{name} must be one of {', '.join(map(str, accepted))}, not {value}")


def yes_or_no(**choices: bool) -> None:
    """Each is True or False."""
    for name, value in choices.items():
        if not isinstance(value, bool):
            refuse(name, "True or False", value)


def is_number(value: object) -> bool:
    """A real number, of Python's or of NumPy's types, and no bool."""
    kind = type(value)
    return kind is float or kind is int or (isinstance(value, Real) and kind is not bool)


def _is_whole(value: object) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def refuse(name: str, accepted: str, value: object) -> None:
    """Raise the ValueError: what was given by which name, and what would be accepted."""
    shown = value if is_number(value) else repr(value)
    raise ValueError(f"{name.replace('_', ' ')} must be {accepted}, not {shown}")
