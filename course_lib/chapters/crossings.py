"""The drawing of where a ring becomes faster than a tree (chapter 04)."""

from __future__ import annotations

from course_lib.chapters.all_reduce_ways import Ways, equal_at
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, human, plain_axes

TREE, RING, GREY = "#cc6a26", "#143f70", "#8a8a8a"
SIZES = {1e4: "10 kB", 1e6: "1 MB", 1e8: "100 MB", 1e10: "10 GB"}
TIMES = {1e-4: "0.1 ms", 1e-3: "1 ms", 1e-2: "10 ms", 1e-1: "100 ms", 1: "1 s"}


def plot_crossing(pair: Ways) -> Picture:
    """Time over the size of the tensor, of a tree and of a ring, and the size from which the ring is faster."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axis = figure.subplots()
    sizes = [1e4 * 10 ** (i / 20) for i in range(121)]
    for (name, seconds), colour, line in zip(pair.items(), (TREE, RING), ("--", "-"), strict=True):
        axis.plot(sizes, [seconds(size) for size in sizes], line, color=colour, label=name, linewidth=2.2)
    size = equal_at(*pair.values())
    axis.axvline(size, color=GREY, linewidth=1)
    axis.annotate(
        f"from {short(size)} on\nthe ring is faster",
        (size, 0.05),
        xycoords=("data", "axes fraction"),
        xytext=(5, 0),
        textcoords="offset points",
        va="bottom",
        fontsize=TEXT,
    )
    axis.set(xscale="log", yscale="log", xlim=(1e4, 1e10), ylim=(5e-5, 3))
    axis.set_xlabel("size of the tensor", fontsize=TEXT)
    axis.set_ylabel("time", fontsize=TEXT)
    axis.set_xticks(list(SIZES), list(SIZES.values()))
    axis.set_yticks(list(TIMES), list(TIMES.values()))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_locator(NullLocator())
    plain_axes(axis)
    axis.legend(frameon=False, fontsize=TEXT, loc="upper left")
    return render(figure, f"Time over the size of the tensor. The ring is faster from {short(size)} on.")


def short(size: float) -> str:
    """Two digits: ``"26 MB"``."""
    return human(float(f"{size:.2g}"))
