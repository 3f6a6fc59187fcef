"""The drawing of peak memory over the number of segments, predicted as a line and measured as dots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, grid_of, human, plain_axes


class Chain(NamedTuple):
    """Peaks of one model, in bytes, by the number of its segments, each with one checkpoint."""

    title: str
    predicted: Mapping[int, float]
    measured: Mapping[int, float] = {}


def plot_checkpoints(*chains: Chain) -> Picture:
    """One panel for each chain; the lowest point of the prediction is marked.

    Raises:
        ValueError: no chain, or one without a prediction.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    if not chains or not all(chain.predicted for chain in chains):
        raise ValueError("there is nothing to draw: give at least one chain with predicted peaks")
    rows, columns = grid_of(len(chains))
    figure = Figure(figsize=(WIDTH, 3.0 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[len(chains) :]:
        axis.set_visible(False)
    for axis, chain in zip(axes, chains, strict=False):
        points = sorted(chain.predicted.items())
        axis.plot(*_in_megabytes(points), color="#143f70", linewidth=1.8, label="predicted")
        if chain.measured:
            dots = _in_megabytes(sorted(chain.measured.items()))
            axis.plot(*dots, "o", color="#cc6a26", label="measured")
        k, least = _least(chain)
        axis.annotate(
            f"least at {k}: {human(least)}",
            (k, least / 1e6),
            xytext=(0, -16),
            textcoords="offset points",
            ha="right" if k == points[-1][0] else "center",
            fontsize=TEXT,
        )
        axis.set(xscale="log", xlabel="number of segments", ylabel="peak of activations, MB")
        axis.xaxis.label.set_size(TEXT)
        axis.yaxis.label.set_size(TEXT)
        ticks = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k <= points[-1][0]]
        axis.xaxis.set(major_locator=FixedLocator(ticks), minor_locator=NullLocator())
        axis.set_xticks(ticks, [str(k) for k in ticks])
        top = max(max(chain.predicted.values()), *chain.measured.values(), 0)
        axis.set_ylim(min(0, least / 1e6 - 0.15 * top / 1e6), 1.05 * top / 1e6)
        axis.set_title(chain.title, loc="left", fontsize=TITLE)
        plain_axes(axis)
        axis.legend(loc="upper center", fontsize=TEXT, frameon=False)
    return render(figure, " ".join(map(_sentence, chains)))


def _in_megabytes(points: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [k for k, _ in points], [size / 1e6 for _, size in points]


def _least(chain: Chain) -> tuple[int, float]:
    least = min(chain.predicted.values())
    equal = sorted(k for k, size in chain.predicted.items() if size == least)
    return equal[(len(equal) - 1) // 2], least


def _sentence(chain: Chain) -> str:
    """Holds predicted numbers alone: two machines need not agree on the measured ones."""
    k, least = _least(chain)
    last = max(chain.predicted)
    course = "falls all the way" if k == last else f"falls, and rises again to {human(chain.predicted[last])}"
    first = f"{human(chain.predicted[min(chain.predicted)])} with {min(chain.predicted)}"
    dots = " Measured dots lie beside the line." if chain.measured else ""
    about = f"{chain.title}: peak memory over the number of segments"
    return f"{about}, from {first}, {course}; least at {k}, {human(least)}.{dots}"
