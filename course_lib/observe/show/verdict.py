"""How far a guess was from the answer, and what was probably forgotten."""

from __future__ import annotations

import math
from collections.abc import Mapping

from course_lib.observe.show.commitment import Guess

RIGHT = 0.005  # as near as this to the answer, it is right; from 10 % on, half a percentage point
NEAR = 0.02  # as near as this to what a mistake gives, it was probably made by that mistake
# Guess over answer -> what it suggests.
LIKELY = {
    0.5: "It is twice your number: does something happen twice?",
    2: "It is half of your number: did you count something twice?",
    **dict.fromkeys([1000, 1024, 1 / 1000, 1 / 1024], "The factor is about 1,000: look at the unit."),
}
BITS = {
    8: "It is an eighth of your number: bits for bytes?",
    1 / 8: "It is eight times your number: bytes for bits?",
}


def how_far(guess: Guess, number: float) -> str:
    """``"too low, by a factor of 1.5"``; ``howFar`` in ``game.js`` says the same."""
    off = abs(guess.value - number)
    side = "too low" if guess.value < number else "too high"
    if off <= RIGHT * (1 if guess.unit == "%" and abs(number) >= 0.1 else abs(number)):
        return "right"
    if guess.unit == "%":
        return f"{side}, by {100 * off:.3g} percentage points"
    if off <= 0.1 * abs(number):
        return f"{side}, but by only {100 * off / abs(number):.0f} %"
    if guess.value * number <= 0:
        return side
    factor = max(number / guess.value, guess.value / number)
    return f"{side}, by a factor of {factor:,.0f}" if factor >= 10 else f"{side}, by a factor of {factor:.2g}"


def mistakes_of(guess: Guess, number: float, mistakes: Mapping[str, float]) -> list[tuple[float, str]]:
    """Wrong values and what a guess near each of them suggests, the chapter's own mistakes first.

    Raises:
        ValueError: a mistake has the right value.
    """
    for said, value in mistakes.items():
        if math.isclose(value, number, rel_tol=RIGHT):
            raise ValueError(f"the mistake {said!r} gives {guess.text(value)}, which is the right answer")
    own = [(value, sentence(f"Perhaps {said}")) for said, value in mistakes.items()]
    general = LIKELY | (BITS if guess.unit in ("B", "B/s") else {})
    return own + [(factor * number, said) for factor, said in general.items()]


def sentence(said: str) -> str:
    """With a full stop where it has no end."""
    return said if said.endswith((".", "?", "!")) else f"{said}."


def likely(value: float, mistakes: list[tuple[float, str]]) -> str:
    """What a guess suggests; empty where it is near no mistake."""
    return next((said for wrong, said in mistakes if abs(value - wrong) <= NEAR * abs(wrong)), "")
