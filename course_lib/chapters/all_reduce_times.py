"""The drawing of all-reduce times over the size of the tensor, predicted as lines and measured as dots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from course_lib.chapters.all_reduce_ways import equal_at, three_ways
from simulator.inputs.checks import positive
from simulator.inputs.hardware import Hardware, Link
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, human, plain_axes
from simulator.predict.collective_time import ALGORITHMS, all_reduce_seconds, tree_ring_crossover

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart by lightness and by the shape of dots and lines as well.
LOOKS = {
    "naive": ("#e0a030", ":", "s"),
    "tree": ("#cc6a26", "--", "^"),
    "ring": ("#143f70", "-", "o"),
    "rings by levels": ("#6f9fc8", "-.", "D"),
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
    marked: Sequence[float] = (),
    asked: Sequence[float] = (),
    levels: Hardware | None = None,
) -> Picture:
    """Seconds of each all-reduce from ``smallest`` to ``largest`` bytes, and from where another is the fastest.

    Args:
        link: what every message travels over.
        ranks: how many share the sum.
        measured: for an algorithm, its (bytes, seconds); drawn as dots.
        algorithms: which are drawn.
        marked: sizes at which each line has a dot.
        asked: sizes of which one is where the lines cross: they are drawn in place of the lines.
        levels: draw tree, ring and rings by levels on such machines, whatever ``algorithms`` says.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    positive(smallest=smallest, largest=largest)
    if smallest >= largest:
        raise ValueError(f"sizes must satisfy 0 < smallest < largest, not {smallest:g} and {largest:g}")
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axis = figure.subplots()
    sizes = [smallest * (largest / smallest) ** (i / 80) for i in range(81)]
    ways: dict[str, Callable[[float], float]] = {
        name: partial(all_reduce_seconds, name, ranks=ranks, link=link) for name in algorithms
    }
    if levels is not None:
        ways = three_ways(link, levels, ranks)
    for name, seconds_of in ways.items():
        colour, line, dot = LOOKS[name]
        if asked:
            line = " "  # keeps the axes as they will be
        seconds = [seconds_of(size) for size in sizes]
        axis.plot(
            sizes,
            seconds,
            line,
            color=colour,
            linewidth=1.8,
            label=None if asked else f"{name}, predicted" if measured else name,
        )
        times = [seconds_of(size) for size in marked]
        axis.plot(marked, times, dot, color=colour, label=name if asked else None)
        if measured and name in measured:
            axis.plot(*zip(*measured[name], strict=True), dot, color=colour, label=f"{name}, measured")
    crossover = tree_ring_crossover(ranks, link)
    for i, size in enumerate(asked):
        axis.axvline(size, color="#8a8a8a", linewidth=1, linestyle=":")
        axis.annotate(
            human(float(f"{size:.3g}")),
            (size, 0.06 + 0.08 * (i % 2)),
            xycoords=("data", "axes fraction"),
            xytext=(4 if i % 2 else -4, 0),
            textcoords="offset points",
            ha="left" if i % 2 else "right",
            fontsize=TEXT,
        )
    bounds: list[float] = []
    if levels is not None:
        tree, ring, by_level = ways.values()
        bounds = [equal_at(tree, by_level), equal_at(by_level, ring)]
    if bounds and not asked:
        _tell_fastest(axis, *bounds)
    elif not asked and smallest < crossover < largest:
        axis.axvline(crossover, color="#8a8a8a", linewidth=1)
        axis.annotate(
            "the ring is faster →" if measured else f"from {human(crossover)}\nthe ring is faster →",
            (crossover, 0.12 if marked else 0.97),
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
    ticks |= {size: human(size) for size in marked}
    axis.set_xticks(list(ticks), list(ticks.values()))
    low, high = axis.get_ylim()
    seconds = [time for time in TIMES if low <= time <= high]
    axis.set_yticks(seconds, [TIMES[time] for time in seconds])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_locator(NullLocator())
    plain_axes(axis)
    axis.legend(frameon=False, fontsize=TEXT)
    if asked:
        sizes = ", ".join(human(float(f"{size:.3g}")) for size in asked)
        return render(figure, f"Times of tree and rings at marked sizes alone; where do they cross? {sizes}.")
    if bounds:
        return render(
            figure,
            f"Time of an all-reduce on {ranks} ranks over the size of the tensor: the tree is the fastest up to "
            f"{_short(bounds[0])}, then rings by levels, and the ring from {_short(bounds[1])} on.",
        )
    return render(figure, _sentence(ranks, crossover, bool(measured)))


def _tell_fastest(axis: Axes, levels: float, ring: float) -> None:
    """Lines at the two sizes, and which way is the fastest between them."""
    for size in (levels, ring):
        axis.axvline(size, color="#8a8a8a", linewidth=1)
    for told, size, high, side, shift in (
        (f"up to {_short(levels)}\nthe tree is the fastest", levels, 0.97, "right", -5),
        ("rings\nby levels", (levels * ring) ** 0.5, 0.14, "center", 0),
        (f"from {_short(ring)}\nthe ring", ring, 0.14, "left", 5),
    ):
        axis.annotate(
            told,
            (size, high),
            xycoords=("data", "axes fraction"),
            xytext=(shift, 0),
            textcoords="offset points",
            ha=side,
            va="top",
            fontsize=TEXT,
        )


def _short(size: float) -> str:
    """Two digits: ``"27 MB"``."""
    return human(float(f"{size:.2g}"))


def _sentence(ranks: int, crossover: float, measured: bool) -> str:
    """Holds no number where the link was measured, since two runs would not agree on it."""
    where = "" if measured else f", from {crossover:,.0f} bytes"
    fastest = f"the tree is below the ring for small tensors and above it for large ones{where}"
    return (
        f"Time of an all-reduce on {ranks} ranks over the size of the tensor: flat while latency rules, then "
        f"rising with the bytes; {fastest if crossover else 'the tree is never below the ring'}."
        + (" Dots are measured." if measured else "")
    )
