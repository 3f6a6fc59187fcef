"""A chapter's game: the learner guesses a number, and the simulator then reveals its own with the formula filled in.

    guess = predict("sent by each of 4 ranks", ..., unit="MB")  # write your number in place of the three dots
    reveal(guess, ring.sent, "2 (p - 1)/p × gradients", p=4, gradients=(44.7e6, "B"))

Three dots stand for "no guess yet". So a chapter suggests no number, and a guess is never taken for an unplayed one.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape
from types import EllipsisType
from typing import Any

from course_lib.observe.show.amounts import amount, same_digits, unit_named
from course_lib.observe.show.shown import Shown
from simulator.ledgers.memory import MemoryBreakdown
from simulator.ledgers.timeline import Timeline
from simulator.ledgers.traffic import Traffic

NO_GUESS = "no guess yet (put your number in place of ...)"
FUNCTIONS = {"min": min, "max": max, "ceil": math.ceil, "sqrt": math.sqrt, "log2": math.log2}  # in a formula

_remembered: dict[str, Guess] = {}


@dataclass(frozen=True)
class Guess:
    """What a learner guessed.

    Args:
        name: the quantity: ``"sent by each of 4 ranks"``.
        value: in the base unit (bytes, seconds, a fraction); ``None``: not guessed yet.
        unit: the base unit (``"B"``, ``"s"``, ``"%"`` …), or a word such as ``"GPUs"``.
    """

    name: str
    value: float | None
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.name}: " + (NO_GUESS if self.value is None else f"you say {self.text(self.value)}")

    def text(self, value: float) -> str:
        """``value`` with this guess's unit."""
        if unit_named(self.unit):
            return amount(value, self.unit)
        return f"{same_digits([value])[0]} {self.unit}".strip()


def predict(name: str, guess: float | str | EllipsisType = ..., unit: str = "") -> Guess:
    """Take the learner's guess, print it, and remember it under its name until the kernel ends.

    Args:
        name: the quantity that is guessed.
        guess: a number in ``unit``, a text with a unit of its own (``"45 MB"``), or ``...`` for no guess yet.
        unit: ``"MB"``, ``"GB/s"``, ``"ms"``, ``"%"`` …, or a word such as ``"GPUs"``.

    Raises:
        ValueError: the guess is not a number, or its unit does not measure the quantity.
    """
    known = unit_named(unit)
    if not known and 0 < len(unit) < 3:
        raise ValueError(f"unit {unit!r} is not known; give one such as 'MB', 'ms' or '%', or a whole word")
    base = known[0] if known else unit
    value = None if guess is ... else _value(guess, unit)
    _remembered[name] = taken = Guess(name, value, base)
    print(taken)
    return taken


def remembered(name: str) -> Guess:
    """The guess that was made under this name.

    Raises:
        ValueError: there was none.
    """
    if name not in _remembered:
        raise ValueError(f"nothing was predicted under the name {name!r}; run the cell with predict(…) first")
    return _remembered[name]


def reveal(
    guess: Guess | str,
    value: float | MemoryBreakdown | Traffic | Timeline,
    formula: str = "",
    **values: float | tuple[float, str],
) -> Shown:
    """Show the simulator's number, the formula behind it with its values filled in, and how far the guess was.

    Args:
        guess: what ``predict`` returned, or the name it was remembered under.
        value: in the base unit (bytes, seconds, a fraction); of a ledger: all its bytes, the bytes sent, its length.
        formula: how the number can be worked out, such as ``"2 (p - 1)/p × gradients"``. Names are letters, digits
            and ``_`` (shown as a blank); ``×``, ``/``, ``+``, ``-``, ``^``, min, max, ceil, sqrt and log2 are known.
        values: what the names in the formula stand for, plain (``p=4``) or with a unit (``gradients=(44.7e6, "B")``).
            Without any, the formula is shown as it is, and not checked.

    Raises:
        ValueError: the formula lacks a value, or does not give ``value`` within half a percent.
    """
    guess = remembered(guess) if isinstance(guess, str) else guess
    number = _number(value)
    lines = []
    if formula:
        lines = [f"= {_readable(formula)}"]
        if values:
            _check(formula, values, number, guess)
            lines.append(f"= {_filled(formula, values)}")
    said = "No guess yet: write your number in the cell with predict(…), and run both cells."
    if guess.value is not None:
        said = f"You said {guess.text(guess.value)}: {_how_far(guess, number)}."
    answer = guess.text(number)
    text = "\n".join([f"{guess.name}: {answer}", *(f"    {line}" for line in lines), said])
    html = (
        f"<p>{escape(guess.name)}: <strong>{escape(answer)}</strong></p>"
        + "".join(f'<div style="margin-left:2em">{escape(line)}</div>' for line in lines)
        + f"<p>{escape(said)}</p>"
    )
    return Shown(text, html)


def _value(guess: float | str, unit: str) -> float:
    """The guess in the base unit."""
    known = unit_named(unit)
    if isinstance(guess, str):
        match = re.fullmatch(r"\s*([-+]?[\d.,_]*\d(?:[eE][-+]?\d+)?)\s*(.*?)\s*", guess)
        if not match:
            raise ValueError(f"{guess!r} is not a guess; give a number, or one with its unit such as '45 MB'")
        try:
            number = float(match[1].replace(",", "").replace("_", ""))
        except ValueError:
            raise ValueError(f"{match[1]!r} in the guess {guess!r} is not a number") from None
        if match[2] and match[2] != unit:
            said = unit_named(match[2])
            if not said or said[0] != (known[0] if known else "B" if unit.startswith("byte") else unit):
                raise ValueError(f"the guess {guess!r} is asked for in {unit or 'a plain number'}")
            return number * said[1]
    elif isinstance(guess, bool) or not isinstance(guess, int | float):
        raise ValueError(f"{guess!r} is not a guess; give a number, or one with its unit such as '45 MB'")
    else:
        number = float(guess)
    if not math.isfinite(number):
        raise ValueError(f"{guess!r} is not a guess; give a finite number")
    return number * (known[1] if known else 1)


def _number(value: float | MemoryBreakdown | Traffic | Timeline) -> float:
    for ledger, quantity in ((MemoryBreakdown, "total"), (Traffic, "sent"), (Timeline, "makespan")):
        if isinstance(value, ledger):
            return float(getattr(value, quantity))
    return float(value)


def _how_far(guess: Guess, number: float) -> str:
    off = guess.value - number
    side = "too low" if off < 0 else "too high"
    if abs(off) <= 0.005 * abs(number):
        return "right"
    if guess.unit == "%":
        return f"{side}, by {100 * abs(off):.3g} percentage points"
    if abs(off) <= 0.1 * abs(number):
        return f"{side}, but by only {abs(off / number):.0%}".replace("%", " %")
    if guess.value * number <= 0:
        return f"{side}, by {guess.text(abs(off))}"
    factor = max(number / guess.value, guess.value / number)
    return f"{side}, by a factor of {factor:,.0f}" if factor >= 10 else f"{side}, by a factor of {factor:.2g}"


_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")


def _explicit(formula: str) -> str:
    """The formula with every multiplication written: ``2 (p - 1)`` becomes ``2 × (p - 1)``."""
    return re.sub(r"(?<=[\w)])\s+(?=[\w(])", " × ", formula.replace("·", "×").replace("*", "×"))


def _readable(formula: str) -> str:
    return _explicit(formula).replace("_", " ")


def _filled(formula: str, values: dict[str, float | tuple[float, str]]) -> str:
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

    return _NAME.sub(fill, _explicit(formula))


def plain(value: float) -> str:
    """A number as one writes it by hand: ``175e9``, ``1,024``, ``0.25``."""
    for exponent in (12, 9, 6):
        if abs(value) >= 10**exponent:
            return f"{value / 10**exponent:.4g}e{exponent}"
    return f"{int(value):,}" if float(value).is_integer() else f"{value:.4g}"


def _check(formula: str, values: dict[str, float | tuple[float, str]], number: float, guess: Guess) -> None:
    numbers: dict[str, Any] = {n: v[0] if isinstance(v, tuple) else v for n, v in values.items()}
    missing = [name for name in _NAME.findall(formula) if name not in numbers and name not in FUNCTIONS]
    if missing:
        raise ValueError(f"the formula {formula!r} needs a value for {', '.join(dict.fromkeys(missing))}")
    python = _explicit(formula).replace("×", "*").replace("^", "**").replace("−", "-")
    try:
        result = eval(python, {"__builtins__": {}}, {**FUNCTIONS, **numbers})
    except (SyntaxError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"the formula {formula!r} cannot be worked out: {error}") from None
    if not math.isclose(result, number, rel_tol=0.005):
        raise ValueError(
            f"the formula {formula!r} gives {guess.text(result)}, the value is {guess.text(number)}"
        )
