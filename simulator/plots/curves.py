"""Curves over training steps, laid over each other so that one sees where they part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.inputs.checks import finite
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, grid_of, plain_axes

# Wide and pale below, thin and dark above: a curve that another one covers still shows on both sides of it.
STROKES = (
    ("#9cc9ee", 7.0, "-"),
    ("#cc6a26", 3.5, "-"),
    ("#222222", 1.3, "-"),
    ("#23614a", 1.3, "--"),
    ("#7d5ba6", 1.3, ":"),
)
ALONE = ("#143f70", 1.8, "-")


def plot_curves(
    *panels: Mapping[str, Sequence[float]],
    titles: Sequence[str] | None = None,
    x: str = "step",
    y: str = "loss",
    bottom: float | None = None,
    first: int = 0,
    every: int = 1,
    stairs: bool = False,
    log: bool = False,
    own_scales: bool = False,
    mark: tuple[float, str] | None = None,
    alt: str | None = None,
) -> Picture:
    """Several curves in one set of axes; panels stand two in a row, drawn to one scale.

    Args:
        panels: for each, curves by name: one value a step. The first lies lowest.
        titles: one for each panel.
        x, y: what the axes say.
        bottom: where the vertical axis begins; by default a little below the lowest curve.
        first, every: the number of the first step, and the steps from one value to the next.
        stairs: keep each value until the next one, for what changes all at once; by default points are joined.
        log: a logarithmic vertical axis, for values above 0.
        own_scales: each panel has a vertical scale of its own, for curves that measure different things.
        mark: where on the horizontal axis a dotted line stands, and what it says.
        alt: the sentence that says what is seen; by default what is drawn.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    if not panels or not all(len(values) for curves in panels for values in (curves, *curves.values())):
        raise ValueError("there is nothing to draw: give at least one curve, each with at least one value")
    if crowded := next((curves for curves in panels if len(curves) > len(STROKES)), None):
        raise ValueError(f"{len(crowded)} curves cannot be told apart; give at most {len(STROKES)}")
    if bottom is not None:
        finite(bottom=bottom)
    if mark is not None:
        finite(mark=mark[0])
    titles = [""] * len(panels) if titles is None else titles
    if len(titles) != len(panels):
        raise ValueError(f"{len(panels)} panels need as many titles, not {len(titles)}")
    rows, columns = grid_of(len(panels))
    figure = Figure(figsize=(WIDTH, 3.0 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, sharex=True, sharey=not own_scales, squeeze=False).flat)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, curves, title in zip(axes, panels, titles, strict=False):
        strokes = STROKES if len(curves) > 1 else [ALONE]
        for (name, values), (colour, width, style) in zip(curves.items(), strokes, strict=False):
            ends = [*values, values[-1]] if stairs else values  # the last value, too, lasts for a step
            axis.plot(
                range(first, first + every * len(ends), every),
                ends,
                color=colour,
                linewidth=width,
                linestyle=style,
                label=name,
                drawstyle="steps-post" if stairs else "default",
            )
        if log:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(
                lambda value, _: f"{value:g}"
            )  # exponents would be too small to read
        if mark is not None:
            axis.axvline(mark[0], color="#8a8a8a", linewidth=1, linestyle=":")
            where = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "xytext": (3, 2)}
            axis.annotate(mark[1], (mark[0], 0), fontsize=TEXT, va="bottom", **where)
        axis.set_title(title, loc="left", fontsize=TITLE)
        axis.set_xlabel(x, fontsize=TEXT, loc="right")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10] if every > 1 else None))
        if not log and all(isinstance(value, int) for values in curves.values() for value in values):
            axis.yaxis.set_major_locator(MaxNLocator(integer=True))  # no half ranks
        plain_axes(axis)
        if axis is axes[0] or list(curves) != list(panels[0]):  # the same names need no second legend
            axis.legend(fontsize=TEXT, frameon=False)
    for axis in axes[::columns]:
        axis.set_ylabel(y, fontsize=TEXT)
    if bottom is not None:
        for axis in axes:
            axis.set_ylim(bottom=bottom)
    return render(figure, alt or "; ".join(map(_sentence, panels, titles, [(x, y)] * len(panels))) + ".")


def _sentence(curves: Mapping[str, Sequence[float]], title: str, words: tuple[str, str]) -> str:
    x, y = words
    about = f", {title}" if title else ""
    return f"{y[:1].upper()}{y[1:]} over {x}{about}: {', '.join(curves)}"
