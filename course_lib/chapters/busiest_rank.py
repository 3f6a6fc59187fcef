"""The drawing of what the busiest rank of an all-reduce sends, over the number of ranks (chapter 04)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.inputs.checks import one_of, positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, human, plain_axes
from simulator.predict.collective_time import ALGORITHMS

# Told apart by the shape of the line as well.
LOOKS = {"naive": ("#e0a030", ":"), "tree": ("#cc6a26", "--"), "ring": ("#143f70", "-")}
SIZES = {1e8: "100 MB", 1e9: "1 GB", 1e10: "10 GB", 1e11: "100 GB", 1e12: "1 TB"}


def busiest_sent(algorithm: str, ranks: int, payload: float) -> float:
    """Bytes that the rank with the most work sends in an all-reduce of ``payload`` bytes.

    The naive rank 0 sends the sum to each other rank, the root of a tree once in each of ceil(log2 p) rounds, and a
    rank of a ring sends all chunks but one, twice.
    """
    one_of("algorithm", algorithm, ALGORITHMS)
    tensors = {"naive": ranks - 1, "tree": (ranks - 1).bit_length(), "ring": 2 * (ranks - 1) / ranks}
    return tensors[algorithm] * payload


def plot_busiest_rank(
    algorithms: Sequence[str],
    most: int = 1000,
    payload: float = 1e9,
    names: Mapping[str, str] | None = None,
) -> Picture:
    """What the busiest of 2 to ``most`` ranks sends to all-reduce ``payload`` bytes, both axes logarithmic.

    Args:
        names: algorithm -> what its line is called, where that is not its name.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    positive(payload=payload)
    called = {name: (names or {}).get(name, name) for name in algorithms}
    ranks = [p for p in (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512) if p < most] + [most]
    figure = Figure(figsize=(WIDTH, 3), layout="constrained")
    axis = figure.subplots()
    for name in algorithms:
        colour, line = LOOKS[name]
        sent = [busiest_sent(name, p, payload) for p in ranks]
        axis.plot(ranks, sent, line, color=colour, linewidth=2.2)
        axis.annotate(
            f"{called[name]}: {human(sent[-1])}",
            (most, sent[-1]),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=TEXT,
        )
    axis.set(xscale="log", yscale="log", xlim=(2, most), ylim=(payload / 2, 2 * most * payload))
    shown = [p for p in (2, 4, 8, 16, 64, 256) if p < most] + [most]
    axis.set_xticks(shown, [f"{p:,}" for p in shown])
    low, high = axis.get_ylim()
    sizes = [size for size in SIZES if low <= size <= high]
    axis.set_yticks(sizes, [SIZES[size] for size in sizes])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("ranks", fontsize=TEXT)
    axis.set_ylabel("sent by the busiest rank", fontsize=TEXT)
    plain_axes(axis)
    told = ", ".join(f"{said} {human(busiest_sent(name, most, payload))}" for name, said in called.items())
    return render(
        figure,
        f"What the busiest rank sends in an all-reduce of {human(payload)}; on {most:,} ranks: {told}.",
    )
