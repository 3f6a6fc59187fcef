"""The drawings of where a ring becomes faster than a tree (chapter 04)."""

from __future__ import annotations

from course_lib.chapters.all_reduce_ways import Ways, equal_at, ways_of_one
from simulator.inputs.checks import at_least
from simulator.inputs.hardware import Link
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, human, plain_axes

TREE, RING, GREY = "#cc6a26", "#143f70", "#8a8a8a"
SIZES = {1e4: "10 kB", 1e6: "1 MB", 1e8: "100 MB", 1e10: "10 GB"}
TICKS = {1e5: "100 kB", 1e6: "1 MB", 1e7: "10 MB", 1e8: "100 MB", 1e9: "1 GB"}
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


def plot_borders(*ranks: int, link: Link) -> Picture:
    """For each number of ranks, all with links of one kind, the size from which the ring is faster than the tree."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    at_least(4, ranks=min(ranks))  # with fewer a ring has no more rounds than a tree
    found = {n: equal_at(*ways_of_one(link, n).values()) for n in sorted(set(ranks))}
    counts, sizes = list(found), list(found.values())
    low, high = min(1e5, min(sizes) / 2), max(1e8, 4 * max(sizes))
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    axis = figure.subplots()
    axis.fill_between(counts, low, sizes, color=TREE, alpha=0.25, linewidth=0)
    axis.fill_between(counts, sizes, high, color=RING, alpha=0.25, linewidth=0)
    axis.plot(counts, sizes, "o-", color="#222222", linewidth=1.6)
    for way, place in (("ring", (0.12, 0.93)), ("tree", (0.96, 0.07))):
        axis.text(
            *place,
            f"the {way} is faster",
            color="#222222",
            transform=axis.transAxes,
            fontsize=TEXT,
            ha="left" if way == "ring" else "right",
            va="top" if way == "ring" else "bottom",
        )
    for count, size in found.items():
        axis.annotate(
            short(size),
            (count, size),
            (0, 9),
            textcoords="offset points",
            fontsize=TEXT,
            ha="right",
            va="bottom",
        )
    axis.set(xscale="log", yscale="log", xlim=(min(counts) / 1.6, max(counts) * 1.15), ylim=(low, high))
    axis.set_xlabel("ranks", fontsize=TEXT)
    axis.set_ylabel("size of the tensor", fontsize=TEXT)
    axis.set_xticks(counts, [f"{count:,}" for count in counts])
    axis.set_yticks(
        [t for t in TICKS if low <= t <= high], [told for t, told in TICKS.items() if low <= t <= high]
    )
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_locator(NullLocator())
    plain_axes(axis)
    told = "; ".join(f"{count:,} ranks: from {short(size)} on" for count, size in found.items())
    return render(figure, f"Where a ring is faster than a tree. {told}.")


def short(size: float) -> str:
    """Two digits: ``"26 MB"``."""
    return human(float(f"{size:.2g}"))
