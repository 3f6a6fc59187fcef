"""What the benchmarks share: how they judge, and the options of their command lines.

They judge by the median of the ratios of measurements that were taken next to each other.

These machines are noisy, and noise comes in waves: two sides measured in the same second share their wave, so
their ratio is steadier than either time.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

# A script's own folder comes first on the path, and there simulator.py would hide the package of its name.
sys.path.append(sys.path.pop(0))
sys.path.insert(0, str(Path(__file__).parents[1]))


def report(
    what: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> float:
    """Print both medians and the median ratio beside its target; leave with exit code 1 on a miss."""
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    line = (
        f"{what}: {ratio:.3f} (median of {len(ours)} pairs; "
        f"{1e3 * statistics.median(ours):.1f} ms and {1e3 * statistics.median(theirs):.1f} ms)"
    )
    met = (at_most is None or ratio <= at_most) and (at_least is None or ratio >= at_least)
    if at_most is not None or at_least is not None:
        bound = f"at most {at_most:g}" if at_most is not None else f"at least {at_least:g}"
        line += f"; target {bound}: {'met' if met else 'MISSED'}"
    print(line, flush=True)
    if not met:
        sys.exit(1)
    return ratio


def count(name: str, default: int, what: str) -> Callable[[Callable], Callable]:
    """An option for a whole number from 1 on; ``what`` says what it counts. Other values end with exit code 2."""
    return click.option(name, type=click.IntRange(min=1), default=default, show_default=True, help=what)


def rounds(default: int) -> Callable[[Callable], Callable]:
    """The option ``--rounds``, which all benchmarks that repeat a measurement have."""
    return count("--rounds", default, "How often each side is measured. The sides take turns.")


def list_of(kind: type[int] | type[float]) -> Callable[[str], list]:
    """The type of an option such as ``20,100,500``: positive numbers. Other values end with exit code 2."""

    def numbers(text: str) -> list:
        try:
            found = [kind(part) for part in text.split(",")]
        except ValueError:
            found = []
        if not found or not all(0 < number < float("inf") for number in found):
            raise click.BadParameter(f"{text!r} is not a list of positive numbers with commas between them.")
        return found

    return numbers
