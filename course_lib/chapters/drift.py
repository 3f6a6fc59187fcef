"""Chapter 09's two curves that show what a falling loss does not: the gradient's norm, and where copies drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.plots.curves import STROKES
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, plain_axes

TITLES = "norm of the gradient", "LayerNorm: distance from one device"


def plot_drift(
    norms: Mapping[str, Sequence[float]], apart: Mapping[str, Sequence[float]], farthest: float
) -> Picture:
    """Left the norms, right the distances, for each run one curve, step by step.

    Args:
        norms, apart: run -> a value for each step; the same runs in both. The first run is the right one.
        farthest: up to which distance the right axis goes, so that two pictures can be compared.

    Raises:
        ValueError: there is nothing to draw, the runs differ, or they are more than can be told apart.
    """
    from matplotlib.figure import Figure

    if not norms or list(norms) != list(apart) or len(norms) > len(STROKES):
        raise ValueError(f"give the same 1 to {len(STROKES)} runs twice, not {list(norms)} and {list(apart)}")
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, curves, title in zip(axes, (norms, apart), TITLES, strict=True):
        for (name, values), (colour, width, style) in zip(curves.items(), STROKES, strict=False):
            axis.plot(values, color=colour, linewidth=width, linestyle=style, label=name)
        axis.set_title(title, loc="left", fontsize=TITLE)
        axis.set_xlabel("step", fontsize=TEXT, loc="right")
        axis.set_ylim(bottom=0)
        plain_axes(axis)
    axes[0].legend(fontsize=TEXT, frameon=False)
    axes[1].set_ylim(-0.02 * farthest, 1.1 * farthest)
    ends = ", ".join(f"{name} {values[-1]:.2f}" for name, values in apart.items())
    return render(figure, f"The norm of the gradient in each step, and the distance at the end: {ends}.")
