"""The table of a Compare section: guess, prediction, measurement, the official implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.observe.show.amounts import same_digits, scale_of
from course_lib.observe.show.axis import axis
from course_lib.observe.show.commitment import Guess
from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table


@dataclass(frozen=True)
class Row:
    """One quantity of a Compare table, in its base unit: bytes, seconds, FLOPs, or a plain number.

    Args:
        name: what it is: ``"sent by each rank"``.
        guess: the learner's, as ``predict`` returned it.
        predicted: the simulator's.
        measured: what our implementation did.
        official: what the official implementation did in the same run.
        unit: ``"B"``, ``"B/s"``, ``"s"``, ``"FLOP"``, ``"FLOP/s"``, ``"%"`` (of a fraction) or ``""``.
    """

    name: str
    guess: Guess | float | None = None
    predicted: float | None = None
    measured: float | None = None
    official: float | None = None
    unit: str = ""

    def cells(self, columns: Sequence[str]) -> list[str | None]:
        """The row's name with its unit, then the values of ``columns``, all in that multiple of the unit."""
        guess = self.guess.value if isinstance(self.guess, Guess) else self.guess
        every = {
            "guess": guess,
            "predicted": self.predicted,
            "measured": self.measured,
            "official": self.official,
        }
        known = [every[c] for c in ("measured", "predicted", "official", "guess") if every[c] is not None]
        factor, unit = scale_of(known[0] if known else 0, self.unit)
        scaled = [None if every[column] is None else every[column] / factor for column in columns]
        texts = same_digits(scaled)
        if isinstance(self.guess, Guess) and guess is None and "guess" in columns:
            texts[columns.index("guess")] = "none"  # asked for, and not played
        return [f"{self.name} ({unit})" if unit else self.name, *texts]


def compare(*rows: Row, official: str = "official", title: str = "") -> Shown:
    """The Compare section's table: the guess, the prediction, the measurement, the official implementation.

    A column appears when a row has something to put in it. The last column divides the measurement by the
    prediction (by the official value, where nothing is predicted): ``exactly 1`` means equal to the last bit.

    Args:
        official: the official implementation's name, such as ``"torch DDP"``.

    Raises:
        ValueError: no row, or a unit that is not known.
    """
    if not rows:
        raise ValueError("compare needs at least one Row")
    every = ("guess", "predicted", "measured", "official")
    columns = [column for column in every if any(getattr(row, column) is not None for row in rows)]
    against = "predicted" if "predicted" in columns else "official"
    with_ratio = "measured" in columns and against in columns
    names = {"guess": "your guess", "predicted": "predicted", "measured": "measured", "official": official}
    header = ["", *(names[c] for c in columns), *([f"measured / {names[against]}"] if with_ratio else [])]
    body = [
        [*row.cells(columns), *([_ratio(row.measured, getattr(row, against))] if with_ratio else [])]
        for row in rows
    ]
    shown = table(header, body, title)
    for row in rows:  # the guess on one axis with what it was about
        if isinstance(row.guess, Guess) and None not in (row.guess.value, row.predicted):
            shown.html += axis(row.guess, row.predicted, row.measured)
    return shown


def _ratio(value: float | None, reference: float | None) -> str | None:
    if value is None or reference is None:
        return None
    if value == reference:
        return "exactly 1"
    return f"{value / reference:.3f}" if reference else None
