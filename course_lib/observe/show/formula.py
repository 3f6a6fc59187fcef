"""The formula behind a number: with its values filled in, and held to give that number."""

from __future__ import annotations

import math
import re
from typing import Any

from course_lib.observe.show.amounts import amount, same_digits, unit_named

FUNCTIONS = {"min": min, "max": max, "ceil": math.ceil, "sqrt": math.sqrt, "log2": math.log2}  # in a formula
NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")
Values = dict[str, float | tuple[float, str]]


def readable(formula: str) -> str:
    """The formula as one reads it: every multiplication written, blanks in names."""
    return _explicit(formula).replace("_", " ")


def filled(formula: str, values: Values) -> str:
    """The formula with each name replaced by its value."""

    def fill(match: re.Match) -> str:
        value = values.get(match[0], match[0])
        if isinstance(value, str):  # a function
            return value
        if isinstance(value, tuple):
            number, unit = value
            text = amount(number, unit) if unit_named(unit) else f"{same_digits([number])[0]} {unit}"
        else:
            text = plain(value)
        return f"({text})" if text.startswith("-") else text

    return NAME.sub(fill, _explicit(formula))


def result(formula: str, values: Values) -> float:
    """What the formula gives.

    Raises:
        ValueError: it lacks a value, or cannot be worked out.
    """
    numbers: dict[str, Any] = {n: v[0] if isinstance(v, tuple) else v for n, v in values.items()}
    missing = [name for name in NAME.findall(formula) if name not in numbers and name not in FUNCTIONS]
    if missing:
        raise ValueError(f"the formula {formula!r} needs a value for {', '.join(dict.fromkeys(missing))}")
    python = _explicit(formula).replace("×", "*").replace("^", "**").replace("−", "-")
    try:
        return eval(python, {"__builtins__": {}}, {**FUNCTIONS, **numbers})
    except (SyntaxError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"the formula {formula!r} cannot be worked out: {error}") from None


def plain(value: float) -> str:
    """A number as one writes it by hand: ``175e9``, ``1,024``, ``0.25``."""
    for exponent in (12, 9, 6):
        if abs(value) >= 10**exponent:
            return f"{value / 10**exponent:.4g}e{exponent}"
    return f"{int(value):,}" if float(value).is_integer() else f"{value:.4g}"


def _explicit(formula: str) -> str:
    """The formula with every multiplication written: ``2 (p - 1)`` becomes ``2 × (p - 1)``."""
    return re.sub(r"(?<=[\w)])\s+(?=[\w(])", " × ", formula.replace("·", "×").replace("*", "×"))
