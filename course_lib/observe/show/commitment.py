"""What a learner has said before the answer is shown: a number or a choice. It is remembered under its name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, TypeVar

from course_lib.observe.show.amounts import amount, same_digits, unit_named

NO_GUESS = "no guess yet (put your number in place of ...)"
NO_BET = "no bet yet (put the number of a choice in place of ...)"
NUMBER = re.compile(r"\s*([-+]?[\d.,_]*\d(?:[eE][-+]?\d+)?)\s*(.*?)\s*")
_remembered: dict[str, Commitment] = {}


@dataclass(eq=False)
class Commitment:
    """What is asked under a name. Subclasses have ``value``, which is None until the learner has said something."""

    name: str
    value: Any = None
    then: list[Callable[[], None]] = field(default_factory=list, kw_only=True, repr=False)

    def commit(self, said: Any) -> None:
        """Take what the learner says, and tell the answers that wait for it."""
        self.value = self.read(said)
        for tell in self.then:
            tell()

    def read(self, said: Any) -> Any:
        """What the learner says as a value; a ValueError where it is none."""
        raise NotImplementedError


@dataclass(eq=False)
class Guess(Commitment):
    """A number.

    Args:
        name: the quantity: ``"sent by each of 4 ranks"``.
        value: in the base unit (bytes, seconds, a fraction); ``None``: not guessed yet.
        unit: the base unit (``"B"``, ``"s"``, ``"%"`` …), or a word such as ``"GPUs"``.
        asked: the unit that the learner is asked for (``"MB"``).
        low, high: in that unit, the ends of a slider.
    """

    unit: str = ""
    asked: str = ""
    low: float | None = None
    high: float | None = None

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
        wrong = f"{said!r} is not a guess; give a number, or one with its unit such as '45 MB'"
        factor = self.factor
        if isinstance(said, str):
            match = NUMBER.fullmatch(said)
            if not match:
                raise ValueError(wrong)
            try:
                number = float(match[1].replace(",", "").replace("_", ""))
            except ValueError:
                raise ValueError(f"{match[1]!r} in the guess {said!r} is not a number") from None
            if match[2] and match[2] != self.asked:
                known = unit_named(match[2])
                if not known or known[0] != ("B" if self.asked.startswith("byte") else self.unit):
                    raise ValueError(f"the guess {said!r} is asked for in {self.asked or 'a plain number'}")
                factor = known[1]
        elif isinstance(said, bool) or not isinstance(said, int | float):
            raise ValueError(wrong)
        else:
            number = float(said)
        if not math.isfinite(number):
            raise ValueError(f"{said!r} is not a guess; give a finite number")
        return number * factor


@dataclass(eq=False)
class Bet(Commitment):
    """One of several choices; ``value`` is its text."""

    choices: Sequence[str] = ()

    def __str__(self) -> str:
        if self.value is not None:
            return f"{self.name}: you say “{self.value}”"
        lines = [f"    {number}  {choice}" for number, choice in enumerate(self.choices, 1)]
        return "\n".join([f"{self.name}: {NO_BET}", *lines])

    def read(self, said: int | str) -> str:
        """A choice by its number, counted from 1, or by its text."""
        if said in self.choices:
            return str(said)
        if isinstance(said, int) and not isinstance(said, bool) and 1 <= said <= len(self.choices):
            return self.choices[said - 1]
        known = ", ".join(f"{number} ({choice!r})" for number, choice in enumerate(self.choices, 1))
        raise ValueError(f"{said!r} is none of the choices of {self.name!r}; they are {known}")


Asked = TypeVar("Asked", bound=Commitment)


def remember(asked: Asked, said: Any | EllipsisType) -> Asked:
    """Keep ``asked`` under its name. What was said before stays, unless ``said`` is something else than ``...``."""
    value = None if said is ... else asked.read(said)
    before = _remembered.get(asked.name)
    if isinstance(before, type(asked)):
        if value is None and not (isinstance(asked, Bet) and before.value not in asked.choices):
            value = before.value
        vars(before).update(vars(asked) | {"then": before.then})
        asked = before
    _remembered[asked.name] = asked
    if value is not None:
        asked.value = value
        for tell in asked.then:
            tell()
    return asked


def remembered(name: str) -> Any:
    """The guess or the bet that was made under this name.

    Raises:
        ValueError: there was none.
    """
    if name not in _remembered:
        raise ValueError(f"nothing was predicted under the name {name!r}; run the cell with predict(…) first")
    return _remembered[name]
