"""The drawing of what several GPUs gain over the tokens of each, and of what the learner has tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from simulator.inputs.checks import positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAINT, GREY, TRIED = "#b0b0b0", "#6a6a6a", "#207a6c"


def plot_speedup_over_tokens(
    most: float,
    highest: float,
    curves: Mapping[str, tuple[float, Callable[[float], float]]],
    tries: Sequence[tuple[float, float]],
    goal: float = 0,
    others: Sequence[tuple[float, float]] = (),
    along: str = "tokens on each GPU",
) -> Picture:
    """How many times as fast as one GPU, over the tokens on each of them.

    Args:
        most: tokens at the right end.
        highest: times one GPU, how far up the drawing goes.
        curves: name -> the most tokens that it goes to, and times one GPU with so many tokens; drawn faintly.
        tries: tokens and times one GPU of each of the learner's tries; the newest is the largest dot.
        goal: times one GPU that the tries are to reach; 0: none.
        others: tries to which the curves do not belong, as hollow dots.
        along: what is drawn from left to right.

    Raises:
        ValueError: there is no try, or an amount is not above 0.
    """
    from matplotlib.figure import Figure

    positive(most=most, highest=highest)
    if not tries:
        raise ValueError("give at least one try")
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axis = figure.subplots()
    for name, (end, times) in curves.items():
        counts = [end * k / 40 for k in range(1, 41)]
        axis.plot(counts, [times(count) for count in counts], color=FAINT, linewidth=1.2)
        _write(axis, name, (end, times(end)), (-3, 6), GREY, "right")
    for words, height in {"one GPU": 1, f"{goal:g} times": goal}.items():
        if height:
            axis.axhline(height, color=GREY, linewidth=1, linestyle=":")
            _write(axis, words, (most, height), (0, 4), GREY, "right")
    for one in others:
        axis.plot(*one, "o", color=TRIED, markersize=5, fillstyle="none")
    for i, (count, times) in enumerate(tries):
        axis.plot([count], [times], "o", color=TRIED, markersize=9 if i == len(tries) - 1 else 5, zorder=3)
    _write(axis, "your tries", tries[-1], (9, -7), TRIED, "left")
    axis.set_xlim(0, most)
    axis.set_ylim(0, highest)
    axis.set_xlabel(along, fontsize=TEXT, loc="right")
    axis.set_ylabel("times one GPU", fontsize=TEXT)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    plain_axes(axis)
    said = [f"{name}: {times(end):.1f} at its end" for name, (end, times) in curves.items()]
    said += [f"a try at {count:,.5g}: {times:.2f}" for count, times in (*others, *tries)]
    return render(
        figure, f"How many times as fast as one GPU several are, over the {along}: {'; '.join(said)}."
    )


def _write(
    axis: Axes, words: str, at: tuple[float, float], away: tuple[float, float], colour: str, side: str
) -> None:
    """Words beside a point, ``away`` in points."""
    axis.annotate(words, at, away, textcoords="offset points", color=colour, fontsize=TEXT, ha=side)
