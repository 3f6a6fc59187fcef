"""Bars in pairs: how long each step keeps the arithmetic busy, and how long the memory."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.inputs.checks import amounts
from simulator.plots.picture import Picture, render
from simulator.plots.style import PARTS, TEXT, WIDTH, bare

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}


def plot_two_times(steps: Mapping[str, tuple[float, float]], alt: str | None = None) -> Picture:
    """For each step two bars, one below the other: seconds of arithmetic, and seconds of memory traffic.

    Args:
        steps: what is done, from top to bottom -> the two times.
        alt: the sentence that says what is seen; by default both times of each step.

    Raises:
        ValueError: there is no step, or a time is not a number of at least 0.
    """
    from matplotlib.figure import Figure

    if not steps:
        raise ValueError("there is nothing to draw: give at least one step with its two times")
    arithmetic, memory = ([pair[side] for pair in steps.values()] for side in (0, 1))
    amounts(seconds=[*arithmetic, *memory])
    unit, size = _unit(max(*arithmetic, *memory))
    figure = Figure(figsize=(WIDTH, 0.6 + 0.46 * len(steps)), layout="constrained")
    axis = figure.subplots()
    places = range(len(steps))
    for shift, times, colour, name in (
        (-0.19, arithmetic, PARTS[6], "arithmetic"),
        (0.19, memory, PARTS[5], "memory"),
    ):
        axis.barh([p + shift for p in places], [t / size for t in times], 0.36, color=colour, label=name)
        for p, t in zip(places, times, strict=True):
            end, right = (t / size, p + shift), (4, 0)  # points
            words = f"{t / size:.3g}"
            axis.annotate(words, end, right, textcoords="offset points", va="center", fontsize=TEXT)
    axis.set_yticks(places, list(steps))
    axis.invert_yaxis()
    axis.set_xlim(0, 1.1 * max(*arithmetic, *memory) / size or 1)
    axis.set_xlabel(f"time, {unit}", fontsize=TEXT, loc="right")
    bare(axis)
    figure.legend(loc="outside right upper", fontsize=TEXT, frameon=False, handlelength=1.2)
    said = "; ".join(
        f"{n}: arithmetic {a / size:.3g}, memory {m / size:.3g} {unit}" for n, (a, m) in steps.items()
    )
    return render(figure, alt or f"Bars in pairs. {said}.")


def _unit(longest: float) -> tuple[str, float]:
    return next(((unit, size) for unit, size in UNITS.items() if longest >= size), ("s", 1.0))
