"""Chapter 12's differences from one device, and the step in which a tolerance catches each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.plots.curves import STROKES
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes


def first_beyond(differences: Sequence[float], tolerance: float) -> int | None:
    """The first step whose difference is larger than the tolerance, counted from 1; None if there is none."""
    return next((step for step, d in enumerate(differences, 1) if abs(d) > tolerance), None)


def plot_caught(runs: Mapping[str, Sequence[float]], tolerance: float) -> Picture:
    """A curve for each run over a grey band as wide as the tolerance; a dot marks the step in which it is caught.

    Args:
        runs: name -> for each step the difference of its loss, as a part of one device's.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    axis, said = figure.subplots(), []
    for (name, values), (colour, width, style) in zip(runs.items(), STROKES, strict=False):
        step = first_beyond(values, tolerance)
        said.append(f"{name}: step {step}" if step else f"{name}: never")
        line = {"color": colour, "linewidth": width, "linestyle": style, "label": said[-1]}
        axis.plot(range(1, len(values) + 1), values, **line)
        if step:
            axis.plot(step, values[step - 1], "o", color=colour, markersize=8, markeredgecolor="#222222")
    axis.axhspan(-tolerance, tolerance, color="#e4e4e4", linewidth=0, zorder=0, label=f"within {tolerance:g}")
    axis.set_xlabel("step", fontsize=TEXT, loc="right")
    axis.set_ylabel("difference / one device's loss", fontsize=TEXT)
    plain_axes(axis)
    legend = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "title": "caught in", "alignment": "left"}
    axis.legend(fontsize=TEXT, title_fontsize=TEXT, frameon=False, **legend)
    return render(figure, f"With a tolerance of {tolerance:g}, the step that catches {', '.join(said)}.")
