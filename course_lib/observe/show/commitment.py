"""What a learner says before the answer is shown: a number or a choice. It is remembered under its name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, TypeVar

from course_lib.observe.show.amounts import amount, same_digits, unit_named

NO_GUESS = "no guess yet (put your number in place of ...)"
NO_BET = "no bet yet (press a choice, or give its number as pick=)"
NUMBER = re.compile(r"\s*([-+]?[\d.,_]*\d(?:[eE][-+]?\d+)?)\s*(.*?)\s*")
_remembered: dict[str, Any] = {}


class Commitment:
    """What is asked under a name. ``value`` is None until the learner has said something."""

    def commit(self, said: Any) -> None:
        """Take what the learner says, and tell the answers that wait for it."""
        self.value = self.read(said)
        for tell in self.then:
            tell()


@dataclass(eq=False)
class Guess(Commitment):
    """A number.

    Args:
        name: the quantity: ``"sent by each of 4 ranks"``.
        value: in the base unit (bytes, seconds, a fraction); ``None``: not guessed yet.
        unit: the base unit (``"B"``, ``"s"``, ``"%"`` …), or a word such as ``"GPUs"``.
        asked: the unit that the learner is asked for (``"MB"``).
        low, high: in that unit, the ends of a slider.
        then: called when the learner has said something.
    """

    name: str
    value: float | None = None
    unit: str = ""
    asked: str = ""
    low: float | None = None
    high: float | None = None
    then: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def __str__(self) -> str:
        return f"{self.name}: " + (NO_GUESS if self.value is None else f"you say {self.text(self.value)}")

    def text(self, value: float) -> str:
        """``value`` with this guess's unit."""
        if unit_named(self.unit):
            return amount(value, self.unit)
        return f"{same_digits([value])[0]} {self.unit}".strip()

    @property
    def factor(self) -> float:
        """How many of the base unit one of the asked unit is."""
        known = unit_named(self.asked)
        return known[1] if known else 1

    def read(self, said: float | str) -> float:
        """A number in the asked unit, or a text with a unit of its own, in the base unit."""
        match = NUMBER.fullmatch(said) if isinstance(said, str) else None
        digits, unit = (match[1].replace(",", ""), match[2]) if match else (said, "")
        factor = self.factor
        if unit not in ("", self.asked):
            known = unit_named(unit)
            if not known or known[0] != ("B" if self.asked.startswith("byte") else self.unit or "%"):
                raise ValueError(f"the guess {said!r} is asked for in {self.asked or 'a plain number'}")
            factor = known[1]
        try:
            number = float(digits)
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(said, bool) or not math.isfinite(number):
            raise ValueError(f"{said!r} is not a guess; give a number, or one with its unit such as '45 MB'")
        low, high, value = self.low, self.high, number * factor / self.factor
        if low is not None and high is not None and not low <= value <= high:
            raise ValueError(f"the guess {said!r} is not between {low:g} and {high:g} {self.asked}".rstrip())
        return number * factor


@dataclass(eq=False)
class Bet(Commitment):
    """One of several choices; ``value`` is its text."""

    name: str
    choices: Sequence[str]
    value: str | None = None
    then: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def __str__(self) -> str:
        if self.value is not None:
            return f"{self.name}: you say “{self.value}”"
        return f"{self.name}: {NO_BET}" + "".join(f"\n    {n}  {c}" for n, c in enumerate(self.choices, 1))

    def read(self, said: int | str) -> str:
        """A choice by its number, counted from 1, or by its text."""
        numbered = dict(enumerate(self.choices, 1))
        if said in self.choices:
            return str(said)
        if isinstance(said, int) and not isinstance(said, bool) and said in numbered:
            return numbered[said]
        known = ", ".join(f"{number} ({choice!r})" for number, choice in numbered.items())
        raise ValueError(f"{said!r} is none of the choices of {self.name!r}; they are {known}")


Asked = TypeVar("Asked", Guess, Bet)


def remember(asked: Asked, said: Any | EllipsisType) -> Asked:
    """Keep what is asked under its name. What was said before stays, unless ``said`` is something else than ``...``."""
    before = _remembered.get(asked.name)
    if isinstance(before, type(asked)):
        stays = before.value in getattr(asked, "choices", [before.value])
        vars(before).update(vars(asked) | {"value": before.value if stays else None, "then": before.then})
        asked = before
    _remembered[asked.name] = asked
    if said is not ...:
        asked.commit(said)
    return asked


def remembered(name: str) -> Any:
    """The guess or the bet that was made under this name.

    Raises:
        ValueError: there was none.
    """
    if name not in _remembered:
        raise ValueError(f"nothing was predicted under the name {name!r}; run the cell with predict(…) first")
    return _remembered[name]
