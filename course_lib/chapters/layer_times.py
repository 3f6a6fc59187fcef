"""One layer, shared by some GPUs: how long it computes, and how long the ranks wait for what they send."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.inputs.checks import amounts
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, bare

COMPUTING, SENDING = "#9cc9ee", "#cc6a26"


def plot_layer_times(
    bars: Mapping[str, tuple[float, float]], of: str = "a layer", unit: str = "ms"
) -> Picture:
    """For each way to share the layer a bar: computing, then sending.

    Args:
        bars: what shares the layer -> seconds of computing and of sending.
        of, unit: what takes the time, and in what it is measured: ``"ms"`` or ``"s"``.

    Raises:
        ValueError: there is nothing to draw, or a time is not a number of at least 0.
    """
    from matplotlib.figure import Figure

    if not bars:
        raise ValueError("there is nothing to draw: give at least one bar")
    figure = Figure(figsize=(WIDTH, 0.9 + 0.36 * len(bars)), layout="constrained")
    scale = {"ms": 1e3, "s": 1.0}[unit]
    axis, told = figure.subplots(), []
    for place, (name, (computing, sending)) in enumerate(bars.items()):
        amounts(seconds=[computing, sending])
        computing, sending = scale * computing, scale * sending
        axis.barh(place, computing, 0.62, color=COMPUTING)
        axis.barh(place, sending, 0.62, computing, color=SENDING)
        said, end = _said(computing, sending), computing + sending
        right = (4, 0)  # points
        axis.annotate(said, (end, place), right, textcoords="offset points", va="center", fontsize=TEXT)
        told.append(f"{name}: {said} {unit}")
    axis.set_yticks(range(len(bars)), list(bars))
    axis.invert_yaxis()
    axis.set_xlim(0, 1.25 * scale * max(map(sum, bars.values())))
    axis.set_xlabel(f"time of {of}, {unit}", fontsize=TEXT, loc="right")
    bare(axis)
    figure.legend(
        handles=_patches(),
        loc="outside upper right",
        ncols=2,
        fontsize=TEXT,
        frameon=False,
        handlelength=1.2,
    )
    return render(figure, f"Time of {of}, computing and sending. {'; '.join(told)}.")


def _said(computing: float, sending: float) -> str:
    return f"{computing:.1f}" + (f" + {sending:.1f}" if sending else "")


def _patches() -> list:
    from matplotlib.patches import Patch

    return [
        Patch(facecolor=COMPUTING, label="computing"),
        Patch(facecolor=SENDING, label="waiting for messages"),
    ]
