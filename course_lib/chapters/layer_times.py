"""One layer, shared by some GPUs: how long it computes, and how long the ranks wait for what they send."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.inputs.checks import amounts
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, bare

COMPUTING, SENDING = "#9cc9ee", "#cc6a26"


def plot_layer_times(*panels: Mapping[str, tuple[float, float]], titles: tuple[str, ...] = ()) -> Picture:
    """For each way to share the layer a bar: computing, then sending. Panels have one scale.

    Args:
        panels: for each, what shares the layer -> seconds of computing and of sending.
        titles: one for each panel.

    Raises:
        ValueError: there is nothing to draw, or a time is not a number of at least 0.
    """
    from matplotlib.figure import Figure

    if not panels or not all(panels):
        raise ValueError("there is nothing to draw: give at least one bar in each panel")
    titles = titles or ("",) * len(panels)
    longest = max(sum(times) for bars in panels for times in bars.values())
    height = 0.9 + 0.36 * max(map(len, panels))
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    told = []
    for axis, bars, title in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, titles, strict=True
    ):
        for place, (name, (computing, sending)) in enumerate(bars.items()):
            amounts(seconds=[computing, sending])
            axis.barh(place, 1e3 * computing, 0.62, color=COMPUTING)
            axis.barh(place, 1e3 * sending, 0.62, 1e3 * computing, color=SENDING)
            axis.text(
                1e3 * (computing + sending),
                place,
                f"  {_said(computing, sending)}",
                va="center",
                fontsize=TEXT,
            )
            told.append(f"{title} {name}: {_said(computing, sending)} ms".strip())
        axis.set_yticks(range(len(bars)), list(bars))
        axis.invert_yaxis()
        axis.set_xlim(0, (1.25 + 0.2 * (len(panels) > 1)) * 1e3 * longest)
        axis.set_title(title, fontsize=TITLE, loc="left")
        axis.set_xlabel("time of one layer, ms", fontsize=TEXT, loc="right")
        bare(axis)
    figure.legend(
        handles=_patches(),
        loc="outside upper right",
        ncols=2,
        fontsize=TEXT,
        frameon=False,
        handlelength=1.2,
    )
    return render(figure, f"Time of a layer, computing and sending. {'; '.join(told)}.")


def _said(computing: float, sending: float) -> str:
    return f"{1e3 * computing:.1f}" + (f" + {1e3 * sending:.1f}" if sending else "")


def _patches() -> list:
    from matplotlib.patches import Patch

    return [
        Patch(facecolor=COMPUTING, label="computing"),
        Patch(facecolor=SENDING, label="messages not hidden"),
    ]
