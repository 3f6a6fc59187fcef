"""The drawing of all-reduce times over the size of the tensor, predicted as lines and measured as dots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.inputs.checks import positive
from simulator.inputs.hardware import Link
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, human, plain_axes
from simulator.predict.collective_time import ALGORITHMS, all_reduce_seconds, tree_ring_crossover

# Told apart by lightness and by the shape of dots and lines as well.
LOOKS = {
    "naive": ("#e0a030", ":", "s"),
    "tree": ("#cc6a26", "--", "^"),
    "ring": ("#143f70", "-", "o"),
}
SIZES = {1: "1 B", 1e3: "1 kB", 1e6: "1 MB", 1e9: "1 GB"}
TIMES = {
    10.0**e: f"{10 ** (e % 3)} {unit}"
    for e, unit in zip(range(-9, 3), 3 * ["ns"] + 3 * ["µs"] + 3 * ["ms"] + 3 * ["s"], strict=True)
}


def plot_all_reduce_times(
    link: Link,
    ranks: int,
    smallest: float = 1e2,
    largest: float = 1e8,
    measured: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    algorithms: Sequence[str] = ALGORITHMS,
) -> Picture:
    """Seconds of each all-reduce from ``smallest`` to ``largest`` bytes, and from where the ring is faster.

    Args:
        link: what every message travels over.
        ranks: how many share the sum.
        measured: for an algorithm, its (bytes, seconds); drawn as dots.
        algorithms: which are drawn.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    positive(smallest=smallest, largest=largest)
    if smallest >= largest:
        raise ValueError(f"sizes must satisfy 0 < smallest < largest, not {smallest:g} and {largest:g}")
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axis = figure.subplots()
    sizes = [smallest * (largest / smallest) ** (i / 80) for i in range(81)]
    for name in algorithms:
        colour, line, dot = LOOKS[name]
        seconds = [all_reduce_seconds(name, size, ranks, link) for size in sizes]
        axis.plot(
            sizes,
            seconds,
            line,
            color=colour,
            linewidth=1.8,
            label=f"{name}, predicted" if measured else name,
        )
        if measured and name in measured:
            axis.plot(*zip(*measured[name], strict=True), dot, color=colour, label=f"{name}, measured")
    crossover = tree_ring_crossover(ranks, link)
    if smallest < crossover < largest:
        axis.axvline(crossover, color="#8a8a8a", linewidth=1)
        axis.annotate(
            "the ring is faster →" if measured else f"from {human(crossover)}\nthe ring is faster →",
            (crossover, 0.97),
            xycoords=("data", "axes fraction"),
            xytext=(5, 0),
            textcoords="offset points",
            va="top",
            fontsize=TEXT,
        )
    axis.set(xscale="log", yscale="log")
    axis.set_xlabel("size of the tensor", fontsize=TEXT)
    axis.set_ylabel("time", fontsize=TEXT)
    ticks = {size: name for size, name in SIZES.items() if smallest <= size <= largest}
    axis.set_xticks(list(ticks), list(ticks.values()))
    low, high = axis.get_ylim()
    seconds = [time for time in TIMES if low <= time <= high]
    axis.set_yticks(seconds, [TIMES[time] for time in seconds])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_locator(NullLocator())
    plain_axes(axis)
    axis.legend(frameon=False, fontsize=TEXT)
    return render(figure, _sentence(ranks, crossover, bool(measured)))


def _sentence(ranks: int, crossover: float, measured: bool) -> str:
    """Holds no number where the link was measured, since two runs would not agree on it."""
    where = "" if measured else f", from {crossover:,.0f} bytes"
    fastest = f"the tree is below the ring for small tensors and above it for large ones{where}"
    return (
        f"Time of an all-reduce on {ranks} ranks over the size of the tensor: flat while latency rules, then "
        f"rising with the bytes; {fastest if crossover else 'the tree is never below the ring'}."
        + (" Dots are measured." if measured else "")
    )
