"""What a cause is called, in a sentence, and what mends it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from course_lib.diagnose.judge import Cause
from course_lib.diagnose.recording.record import FLOWING, GRADIENT, OUTPUT, UNCLIPPED

TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def sentence(cause: Cause) -> str:
    """What is wrong and how, and where that is known, what mends it."""
    kind = GRADIENT if cause.kind == UNCLIPPED else cause.kind
    text = TEXTS[kind].get(cause.verdict, "{is_} wrong on {ranks}.")
    place, many = cause.placement, len(cause.names) > 1
    factors, wrong = list(place.factors.values()), place.ranks
    dims = " and ".join(map(str, place.dims))
    said = text.format(
        is_="are" if many else "is",
        has="have" if many else "has",
        it="they begin" if many else "it begins",
        ranks=(f"rank{'s' * (len(wrong) > 1)} " + ", ".join(map(str, wrong))) if wrong else "every rank",
        axis=place.axis,
        near=f"`{cause.near}`",
        cut=f", each rank with its part of dim {dims}" if dims else "",
        dims=dims,
        factor=f"{factors[0]:.6g}" if factors else "",
        factors=", ".join(f"{k:.3g} on rank {r}" for r, k in place.factors.items()),
        user="clipping" if cause.kind == UNCLIPPED else "optimizer",
        reader=cause.near or "the backward of what reads the output",
    )
    return f"{_subject(cause)} {said}"


def _subject(cause: Cause) -> str:
    end = ".grad" if cause.kind in (GRADIENT, UNCLIPPED) else ""
    first, more = f"`{cause.names[0]}{end}`", len(cause.names) - 1
    if cause.kind == FLOWING:
        return f"The gradient of the output of {first}"
    if cause.kind == OUTPUT:
        return f"The output of {first}"
    return first if not more else f"{first} and {more} more"
