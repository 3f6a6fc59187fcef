"""Chapter 12's differences from one device, and the step in which a tolerance catches each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

LEAST = 1e-8  # no difference is drawn here, at the tick 0
# Four bugs and none: wide and pale below. The colours are not those of the five runs (``STROKES``).
BUGS = (
    ("#e3bf4d", 7.0, "-"),
    ("#b8325c", 3.5, "-"),
    ("#16888f", 1.8, "-"),
    ("#6b4423", 1.5, "--"),
    ("#808080", 1.5, ":"),
)


def first_beyond(differences: Sequence[float], tolerance: float) -> int | None:
    """The first step whose difference is larger than the tolerance, counted from 1; None if there is none."""
    return next((step for step, d in enumerate(differences, 1) if abs(d) > tolerance), None)


def plot_caught(runs: Mapping[str, Sequence[float]], tolerance: float) -> Picture:
    """A curve for each bug, logarithmic, and a line at the tolerance; a dot marks the step in which it is caught.

    Args:
        runs: name -> for each step the difference of its loss, as a fraction of one device's.

    Raises:
        ValueError: the tolerance is not above 0.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    if not tolerance > 0:
        raise ValueError(f"a tolerance is above 0, not {tolerance}")
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axis, said = figure.subplots(), []
    axis.set_yscale("log")
    for (name, values), (colour, width, style) in zip(runs.items(), BUGS, strict=False):
        step = first_beyond(values, tolerance)
        said.append(f"{name}: step {step}" if step else f"{name}: never")
        line = {"color": colour, "linewidth": width, "linestyle": style, "label": said[-1]}
        sizes = [max(abs(value), LEAST) for value in values]
        axis.plot(range(1, len(sizes) + 1), sizes, marker="." if style == ":" else None, **line)
        if step:
            axis.plot(step, sizes[step - 1], "o", color=colour, markersize=8, markeredgecolor="#222222")
    axis.axhline(tolerance, color="#222222", linewidth=1.2, linestyle=(0, (6, 3)), zorder=1)
    axis.set_ylim(LEAST / 1.5, 2e-2)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_locator(FixedLocator([10.0**n for n in range(-8, -1)]))
    axis.yaxis.set_major_formatter(lambda value, _: plain(value) if value > 2 * LEAST else "0")
    axis.yaxis.set_minor_locator(NullLocator())
    axis.grid(axis="y", color="#dddddd", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.set_xlabel("step", fontsize=TEXT, loc="right")
    axis.set_ylabel("|difference| / one device's loss", fontsize=TEXT)
    plain_axes(axis)
    title = f"caught by {plain(tolerance)} (dashed)"
    legend = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "title": title, "alignment": "left"}
    axis.legend(fontsize=TEXT, title_fontsize=TEXT, frameon=False, **legend)
    return render(figure, f"With a tolerance of {plain(tolerance)}, the step that catches {', '.join(said)}.")


def plain(value: float) -> str:
    """1e-5, as one writes it in code."""
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"
