"""A chapter's game: the learner guesses a number or bets on a choice, and only then sees the answer.

    guess = predict("sent by each of 4 ranks", ..., unit="MB")
    reveal(guess, ring.sent, "2 (p - 1)/p × gradients", p=4, gradients=(44.7e6, "B"))
    which = bet("one layer, both laptops", ["faster over both", "slower over both"])
    reveal(which, "slower over both", timeline)

Three dots stand for "nothing said yet", so a chapter suggests nothing. They may be replaced by the number.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType

from course_lib.observe.show.amounts import unit_named
from course_lib.observe.show.commitment import Bet, Guess, remember, remembered
from course_lib.observe.show.game import ask
from course_lib.observe.show.reveal import reveal

__all__ = ["Bet", "Guess", "bet", "predict", "remembered", "reveal"]


def predict(
    name: str,
    guess: float | str | EllipsisType = ...,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
) -> Guess:
    """Ask the learner for a number. It is remembered under its name until the kernel ends.

    Args:
        name: the quantity that is guessed.
        guess: a number in ``unit``, a text with a unit of its own (``"45 MB"``), or ``...`` for no guess yet.
        unit: ``"MB"``, ``"GB/s"``, ``"ms"``, ``"%"`` …, or a word such as ``"GPUs"``.
        low, high: in ``unit``, the ends of a slider beside the number's field.

    Raises:
        ValueError: the guess is not a number, its unit does not measure the quantity, or the slider has no length.
    """
    known = unit_named(unit)
    if not known and 0 < len(unit) < 3:
        raise ValueError(f"unit {unit!r} is not known; give one such as 'MB', 'ms' or '%', or a whole word")
    if (low is None) != (high is None) or (low is not None and high is not None and not low < high):
        raise ValueError(f"a slider needs low below high, not low={low} and high={high}")
    return ask(remember(Guess(name, None, known[0] if known else unit, unit, low, high), guess))


def bet(name: str, choices: Sequence[str], pick: int | str | EllipsisType = ...) -> Bet:
    """Ask the learner which of several choices is right. It is remembered under its name until the kernel ends.

    Args:
        name: what is asked: ``"one layer, both laptops"``.
        choices: two or more.
        pick: a choice by its number, counted from 1, or by its text, or ``...`` for no bet yet.

    Raises:
        ValueError: fewer than two choices, one of them twice, or a pick that is none of them.
    """
    if isinstance(choices, str) or len(choices) < 2 or len(set(choices)) < len(choices):
        raise ValueError(f"a bet needs two or more different choices, not {choices!r}")
    return ask(remember(Bet(name, tuple(choices)), pick))
