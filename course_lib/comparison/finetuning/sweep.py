"""The starts and the learning rates tried of each method; ``course_lib.comparison.walk`` says in which order."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.comparison.finetuning.methods import METHODS, PROBE
from course_lib.comparison.finetuning.probe import STRENGTHS


def starts_of(method: str) -> tuple[str, ...]:
    return ("",) if method == PROBE else tuple(METHODS[method].starts)


def rates_of(method: str, lrs: Sequence[float] | None = None) -> tuple[float, ...]:
    """The grid, from small to large: ``lrs`` in place of the method's own; the probe has its strengths."""
    return tuple(sorted(set(STRENGTHS if method == PROBE else lrs or METHODS[method].lrs)))
