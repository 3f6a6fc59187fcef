"""Chapter 09's first picture: what a GPU must hold, of which more GPUs divide only one part."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.inputs.checks import amounts, positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, bare

PARTS = {"states": "#9cc9ee", "activations of one sequence": "#f0b88a"}


def plot_never_fits(bars: Mapping[str, tuple[float, float]], capacity: float, device: str) -> Picture:
    """For each number of GPUs a bar: bytes of states, then of activations, and a line where the GPU is full.

    Args:
        bars: which GPUs -> bytes of states and of activations on each of them.
        capacity: bytes of memory of the device that is called ``device``.

    Raises:
        ValueError: there is nothing to draw, or an amount is below 0.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    positive(capacity=capacity)
    if not bars:
        raise ValueError("there is nothing to draw: give at least one bar")
    figure = Figure(figsize=(WIDTH, 1.0 + 0.36 * len(bars)), layout="constrained")
    axis, told = figure.subplots(), []
    for place, (name, both) in enumerate(bars.items()):
        amounts(bytes=list(both))
        states, activations = (part / 1e9 for part in both)
        for left, part, colour in zip((0, states), (states, activations), PARTS.values(), strict=True):
            axis.barh(place, part, 0.62, left, color=colour)
        said, right = f"{states:.0f} + {activations:.0f}", (4, 0)  # points
        end = (states + activations, place)
        axis.annotate(said, end, right, textcoords="offset points", va="center", fontsize=TEXT)
        told.append(f"{name}: {said} GB")
    axis.axvline(capacity / 1e9, color="#222222", linestyle="--", linewidth=1)
    axis.text(
        capacity / 1e9, -0.55, f"{device}: {capacity / 1e9:.0f} GB", ha="center", va="bottom", fontsize=TEXT
    )
    axis.set_yticks(range(len(bars)), list(bars))
    axis.set(ylim=(len(bars) - 0.5, -0.5), xlim=(0, 1.25 * max(map(sum, bars.values())) / 1e9))
    axis.set_xlabel("on each GPU, GB", fontsize=TEXT, loc="right")
    bare(axis)
    figure.legend(
        handles=[Patch(facecolor=colour, label=name) for name, colour in PARTS.items()],
        loc="outside lower left",
        ncols=2,
        fontsize=TEXT,
        frameon=False,
        handlelength=1.2,
    )
    return render(
        figure, f"What each GPU holds, beside a line at {capacity / 1e9:.0f} GB. {'; '.join(told)}."
    )
