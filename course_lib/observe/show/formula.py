"""The formula behind a number: with its values filled in, and held to give that number."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from course_lib.observe.show.amounts import amount, same_digits, unit_named

FUNCTIONS = {"min": min, "max": max, "ceil": math.ceil, "sqrt": math.sqrt, "log2": math.log2}  # in a formula
NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")


def explained(formula: str, values: dict[str, Any], number: float, text: Callable[[float], str]) -> list[str]:
    """The formula, and the formula with its values.

    Raises:
        ValueError: it lacks a value, cannot be worked out, or does not give ``number`` within half a percent.
    """
    lines = [f"= {_explicit(formula).replace('_', ' ')}"]
    if values:
        found = _result(formula, values)
        if not math.isclose(found, number, rel_tol=0.005):
            raise ValueError(f"the formula {formula!r} gives {text(found)}, the value is {text(number)}")
        lines.append(f"= {_filled(formula, values)}")
    return lines


def _filled(formula: str, values: dict[str, Any]) -> str:
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


def _result(formula: str, values: dict[str, Any]) -> float:
    numbers = {n: v[0] if isinstance(v, tuple) else v for n, v in values.items()}
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
