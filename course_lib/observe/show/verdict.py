"""How far a guess was from the answer, and what was probably forgotten."""

from __future__ import annotations

import math
from collections.abc import Mapping

from course_lib.observe.show.commitment import Guess

NEAR = 0.02  # a guess this near to a mistake's value was probably made by that mistake
RIGHT = 0.005
LIKELY = {  # guess / answer: what such a guess suggests
    1 / 2: "It is twice your number: does something happen twice?",
    2: "It is half of your number: did you count something twice?",
    1000: "The factor is 1,000: look at the unit.",
    1 / 1000: "The factor is 1,000: look at the unit.",
    1024: "The factor is 1,024: look at the unit.",
    1 / 1024: "The factor is 1,024: look at the unit.",
}
BITS = {
    8: "It is an eighth of your number: bits for bytes?",
    1 / 8: "It is eight times your number: bytes for bits?",
}


def how_far(guess: Guess, number: float) -> str:
    """``"too low, by a factor of 1.5"``."""
    off = guess.value - number
    side = "too low" if off < 0 else "too high"
    if abs(off) <= RIGHT * abs(number):
        return "right"
    if guess.unit == "%":
        return f"{side}, by {100 * abs(off):.3g} percentage points"
    if abs(off) <= 0.1 * abs(number):
        return f"{side}, but by only {abs(off / number):.0%}".replace("%", " %")
    if guess.value * number <= 0:
        return f"{side}, by {guess.text(abs(off))}"
    factor = max(number / guess.value, guess.value / number)
    return f"{side}, by a factor of {factor:,.0f}" if factor >= 10 else f"{side}, by a factor of {factor:.2g}"


def mistakes_of(guess: Guess, number: float, mistakes: Mapping[str, float]) -> list[tuple[float, str]]:
    """What a guess near each of these values suggests, the chapter's own mistakes first.

    Raises:
        ValueError: a mistake has the right value.
    """
    for sentence, value in mistakes.items():
        if math.isclose(value, number, rel_tol=RIGHT):
            raise ValueError(f"the mistake {sentence!r} gives {guess.text(value)}, which is the right answer")
    own = [(value, f"Perhaps {sentence.rstrip('.')}.") for sentence, value in mistakes.items()]
    general = LIKELY | (BITS if guess.unit in ("B", "B/s") else {})
    return own + [(factor * number, sentence) for factor, sentence in general.items() if number]


def likely(value: float, found: list[tuple[float, str]]) -> str:
    """The sentence of the mistake that a guess was probably made by; empty where there is none."""
    near = [(abs(value / wrong - 1), sentence) for wrong, sentence in found if wrong]
    return next((sentence for off, sentence in near if off <= NEAR), "")
