"""Chapter 25: how good a model is whose vocabulary has grown, at once and over a short training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, plain_axes

COLOURS = ("#cc6a24", "#222222", "#4a86ba")
CHANCE = "chance it gives the right character, %"


def plot_recovery(chances: Mapping[str, Sequence[float]], every: int, before: float) -> Picture:
    """Chances over steps, from step 0, and a dashed line where they were before the vocabulary grew.

    Args:
        chances: name -> percent at step 0 and after every ``every`` steps; three curves at most.
        before: percent.

    Raises:
        ValueError: no curve, or more curves than colours.
    """
    from matplotlib.figure import Figure

    if not 1 <= len(chances) <= len(COLOURS):
        raise ValueError(f"give 1 to {len(COLOURS)} curves, not {len(chances)}")
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axis = figure.subplots()
    for (name, values), colour in zip(chances.items(), COLOURS, strict=False):
        axis.plot(range(0, every * len(values), every), values, color=colour, linewidth=2.2)
        axis.plot(
            0,
            values[0],
            "o-",
            color=colour,
            markersize=6,
            clip_on=False,
            label=f"{name}, from {values[0]:.0f}",
        )
    end = every * (max(map(len, chances.values())) - 1)
    axis.axhline(before, color="#222222", linewidth=1, linestyle="--")
    axis.annotate(
        f"before: {before:.0f}",
        (end, before),
        (0, 5),
        textcoords="offset points",
        ha="right",
        fontsize=TEXT,
    )
    axis.set(xlim=(0, end), ylim=(0, 100))
    axis.set_xlabel("steps of training", fontsize=TEXT, loc="right")
    axis.set_title(CHANCE, fontsize=TITLE, loc="left")
    axis.legend(loc="lower right", fontsize=TEXT, frameon=False)
    plain_axes(axis)
    ends = "; ".join(f"{name}: from {values[0]:.0f} to {values[-1]:.0f}" for name, values in chances.items())
    return render(figure, f"{CHANCE}, over {end} steps, {before:.0f} before. {ends}.")
