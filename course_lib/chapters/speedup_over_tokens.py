"""The drawing of what several GPUs gain over the tokens of each, and of what the learner has tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from simulator.inputs.checks import positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS = (("#143f70", 2.4, "-"), ("#cc6a26", 1.8, "--"))  # told apart by lightness and by the shape as well
GREY, TRIED = "#6a6a6a", "#207a6c"


def plot_speedup_over_tokens(
    tokens: Sequence[float],
    speedups: Mapping[str, Callable[[float], float]],
    gpus: float,
    marks: Sequence[tuple[str, float]] = (),
    tries: Sequence[tuple[float, float]] = (),
    goal: float = 0,
    ours: float = 0,
    along: str = "tokens on each GPU",
) -> Picture:
    """How many times as fast as one GPU, over the tokens on each of them.

    Args:
        tokens: to draw, the fewest first.
        speedups: name -> times one GPU with so many tokens.
        gpus: how far up the drawing goes; as many as are compared with one, or fewer.
        marks: words beside a point where several are as fast as one GPU, and its tokens, the fewest first. With
            them the drawing begins at ``tokens[0]``.
        tries: tokens and times one GPU of each of the learner's tries; the newest is the largest dot.
        goal: times one GPU that the tries are to reach; 0: none.
        ours: tokens with which we reach it; 0: not told.
        along: what is drawn from left to right.

    Raises:
        ValueError: fewer than two numbers of tokens, or they do not grow; nothing to draw, or more than two lines.
    """
    from matplotlib.figure import Figure

    positive(gpus=gpus)
    if len(tokens) < 2 or sorted(set(tokens)) != list(tokens):
        raise ValueError(f"tokens must be at least two growing numbers, not {list(tokens)}")
    if len(speedups) > len(LOOKS) or not (speedups or tries):
        raise ValueError(f"{len(speedups)} lines cannot be drawn; give 1 to {len(LOOKS)}, or tries")
    figure = Figure(figsize=(WIDTH, 3.4 if speedups else 2.8), layout="constrained")
    axis = figure.subplots()
    highest = max((times(tokens[-1]) for times in speedups.values()), default=0)
    for (name, times), (colour, width, stroke) in zip(speedups.items(), LOOKS, strict=False):
        values = [times(count) for count in tokens]
        axis.plot(tokens, values, stroke, color=colour, linewidth=width)
        away = (-24, 2) if values[-1] == highest else (0, -22)
        _write(axis, name, (tokens[-1], values[-1]), away, colour, "right")
    for words, height in {"one GPU": 1, f"{goal:g} times": goal}.items():
        if height:
            axis.axhline(height, color=GREY, linewidth=1, linestyle=":")
            _write(axis, words, (tokens[-1], height), (0, 4), GREY, "right")
    for i, (words, at) in enumerate(marks):
        axis.plot([at, at], [0, 1], color=GREY, linewidth=1)
        axis.plot([at], [1], "o", color=LOOKS[0][0], markersize=5, zorder=3)
        away, side = ((5, 8), "left") if i else ((-5, 8), "right")
        _write(axis, words, (at, 0), away, GREY, side)
    if ours:
        axis.plot([ours], [goal], "o", color=GREY, markersize=7, fillstyle="none")
        _write(axis, "ours", (ours, goal), (0, 7), GREY, "center")
    for i, (count, times) in enumerate(tries):
        axis.plot([count], [times], "o", color=TRIED, markersize=9 if i == len(tries) - 1 else 5, zorder=3)
    if tries:
        _write(axis, "your tries", tries[-1], (8, -4), TRIED, "left")
    axis.set_xlim(tokens[0] if marks else 0, tokens[-1])
    axis.set_ylim(0, gpus)
    axis.set_xlabel(along, fontsize=TEXT, loc="right")
    axis.set_ylabel("times one GPU", fontsize=TEXT)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if tokens[-1] > 10 else f"{value:g}")
    plain_axes(axis)
    said = [f"{name}: {times(tokens[-1]):.1f} at the right end" for name, times in speedups.items()]
    said += [f"{words} at {at:.3g}" for words, at in marks]
    said += [f"ours: {goal:g} at {ours:,.0f}"] if ours else []
    said += [f"a try at {count:,.5g}: {times:.2f}" for count, times in tries]
    return render(
        figure, f"How many times as fast as one GPU several are, over the {along}: {'; '.join(said)}."
    )


def _write(
    axis: Axes, words: str, at: tuple[float, float], away: tuple[float, float], colour: str, side: str
) -> None:
    """Words beside a point, ``away`` in points."""
    axis.annotate(words, at, away, textcoords="offset points", color=colour, fontsize=TEXT, ha=side)
