"""The drawing of what several GPUs gain over the tokens of each: where they break even, and where the line bends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from simulator.inputs.checks import positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS = (("#143f70", 2.4, "-"), ("#cc6a26", 1.8, "--"))  # told apart by lightness and by the shape as well
GREY = "#6a6a6a"


def plot_speedup_over_tokens(
    tokens: Sequence[float],
    speedups: Mapping[str, Callable[[float], float]],
    marks: Mapping[str, float],
    rule: tuple[str, float],
    gpus: int,
) -> Picture:
    """How many times as fast as one GPU, over the tokens on each of them.

    Args:
        tokens: to draw, the fewest first.
        speedups: name -> times one GPU with so many tokens; the first line carries the marks.
        marks: words -> tokens at which a dot stands on the first line.
        rule: words at the top of an upright line, and its tokens.
        gpus: that are compared with one.

    Raises:
        ValueError: fewer than two numbers of tokens, or they do not grow; no line, or more than two.
    """
    from matplotlib.figure import Figure

    positive(gpus=gpus, rule=rule[1], **{f"tokens of {words}": at for words, at in marks.items()})
    if len(tokens) < 2 or sorted(set(tokens)) != list(tokens):
        raise ValueError(f"tokens must be at least two growing numbers, not {list(tokens)}")
    if not 1 <= len(speedups) <= len(LOOKS):
        raise ValueError(f"{len(speedups)} lines cannot be drawn; give 1 to {len(LOOKS)}")
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axis = figure.subplots()
    for (name, times), (colour, width, stroke) in zip(speedups.items(), LOOKS, strict=False):
        values = [times(count) for count in tokens]
        axis.plot(tokens, values, stroke, color=colour, linewidth=width)
        _write(axis, name, (tokens[-1], values[-1]), (0, -16), colour, "right")
    axis.axhline(1, color=GREY, linewidth=1, linestyle=":")
    _write(axis, "one GPU", (tokens[-1], 1), (0, 4), GREY, "right")
    words, at = rule
    axis.axvline(at, color=GREY, linewidth=1)
    _write(axis, words, (at, 0), (6, 8), GREY, "left")
    first, (colour, *_) = next(iter(speedups.values())), LOOKS[0]
    for words, at in marks.items():
        axis.plot([at], [first(at)], "o", color=colour, markersize=7)
        height = first(at)  # where the line is high, there is room on its left
        if height > gpus / 2:
            away, side = (-9, 5), "right"
        else:
            away, side = (16, 3) if height > 0.7 else (10, 0), "left"
        _write(axis, words, (at, height), away, colour, side)
    axis.set_xlim(0, tokens[-1])
    axis.set_ylim(0, gpus)
    axis.set_xlabel("tokens on each GPU", fontsize=TEXT, loc="right")
    axis.set_ylabel("times one GPU", fontsize=TEXT)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    plain_axes(axis)
    said = "; ".join(f"{words} at {at:,.0f} tokens" for words, at in (*marks.items(), rule))
    return render(figure, f"How many times as fast as one GPU {gpus} are, over the tokens on each: {said}.")


def _write(
    axis: Axes, words: str, at: tuple[float, float], away: tuple[float, float], colour: str, side: str
) -> None:
    """Words beside a point, ``away`` in points."""
    axis.annotate(words, at, away, textcoords="offset points", color=colour, fontsize=TEXT, ha=side)
