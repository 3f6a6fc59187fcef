"""The drawing of a machine's network cards, and of what rings send out of it through each (chapter 04)."""

from __future__ import annotations

from math import cos, pi, sin
from typing import TYPE_CHECKING

from simulator.inputs.checks import at_least
from simulator.inputs.hardware import Hardware, Link
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, human

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OUT, WITHIN, IDLE, EDGE = "#cc6a26", "#7d99b3", "#d9d9d9", "#8a8a8a"
CARD, TIP = 1.6, 2.4  # how far from the middle, where a rank is 1 away
SIDE = 2.4  # how far each of two machines stands from the middle of the picture


def through_cards(ranks: int, each: int, rings: int = 1) -> list[float]:
    """Tensors that each rank of a machine sends out of it, through its own card, in an all-reduce.

    Args:
        each: ranks of a machine.
        rings: so many at once, each with its part of the tensor; in each another rank is a machine's last.
    """
    at_least(1, each=each, rings=rings)
    if ranks % each:
        raise ValueError(f"{ranks} ranks do not fill machines of {each}")
    out = [0.0] * each
    for turn in range(rings if ranks > each else 0):
        out[(turn - 1) % each] += 2 * (ranks - 1) / ranks / rings
    return out


def plot_busy_cards(ranks: int, payload: float, card: Link, each: int = 8) -> Picture:
    """A machine of eight ranks in one ring, and in eight rings, each with its part; one of them is coloured."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    shown = {"one ring": (1, each - 1), "eight rings": (each, 2)}
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    told = []
    for axis, (name, (rings, last)) in zip(figure.subplots(1, len(shown)), shown.items(), strict=True):
        size = payload * max(through_cards(ranks, each, rings))
        where = "one" if rings == 1 else "each"
        ends = (
            f"{human(float(f'{size:.2g}'))} through {where}",
            f"network card: {1e3 * size / card.rate:.0f} ms",
        )
        told.append(f"{name}: {' '.join(ends)}")
        axis.set_title(name, fontsize=TITLE)
        axis.text(0, -TIP - 0.35, "\n".join(ends), fontsize=TEXT, ha="center", va="top")
        _draw_machine(axis, each, last, alone=rings == 1)
    signs = [
        Line2D([], [], color=OUT, lw=2.2),
        Line2D([], [], color=WITHIN, lw=1.3),
        Line2D([], [], marker="s", ls="", ms=9, color=IDLE, mec=EDGE),
    ]
    figure.legend(
        signs,
        ["one ring", "the other seven, outside the machine", "unused network card"],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=TEXT,
    )
    return render(
        figure, f"A machine of {each} of {ranks:,} ranks, each with a network card. {'; '.join(told)}."
    )


def plot_machine(hardware: Hardware) -> Picture:
    """Two machines, their GPUs, links and network cards, and a ring that goes through both."""
    from matplotlib.figure import Figure

    each = hardware.node_size
    inside, out = (
        f"{1e6 * link.latency:.0f} µs, and {_two(1e3 * link.seconds(1e9, 0))} ms for 1 GB"
        for link in (hardware.node, hardware.network)
    )
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    axis = figure.subplots()
    left, right = -SIDE, SIDE
    for number, middle in enumerate((left, right)):
        _draw_machine(axis, each, each - 1, middle=middle, first=number * each, links=True)
    for start, end in ((left - 2 * SIDE, left), (left, right), (right, right + 2 * SIDE)):
        start, end = (x + side * sin(pi / each) * CARD for x, side in ((start, 1), (end, -1)))
        bow = {"arrowstyle": "-|>", "color": OUT, "linewidth": 2.2, "connectionstyle": "arc3,rad=-0.25"}
        high = CARD * cos(pi / each) + 0.12
        axis.annotate("", (end, high), (start, high), arrowprops=bow, annotation_clip=False, zorder=2)
    for told, (x, y), end in (
        (f"links between all GPUs:\n{inside}", (left, -2.0), (left, -0.75)),
        (f"a network card:\n{out}", (right, -2.0), (right + 0.62, -CARD - 0.05)),
    ):
        axis.annotate(
            told,
            end,
            (x, y),
            fontsize=TEXT,
            ha="center",
            va="top",
            arrowprops={"arrowstyle": "-", "color": EDGE, "shrinkA": 0, "shrinkB": 0, "relpos": (0.5, 1)},
        )
    axis.set(xlim=(-2 * SIDE - 0.7, 2 * SIDE + 0.7), ylim=(-CARD - 1.1, TIP - 0.1))
    return render(
        figure,
        f"Two machines of {each} GPUs with links between them, {inside}, each with its own network card, {out}. "
        "A ring goes through all GPUs of a machine, then through a network card to the next machine.",
    )


def _two(number: float) -> str:
    """Two digits."""
    return f"{number:.2g}" if number < 10 else f"{number:.0f}"


def _draw_machine(
    axis: Axes,
    each: int,
    last: int,
    alone: bool = True,
    middle: float = 0,
    first: int = 0,
    links: bool = False,
) -> None:
    """A coloured ring leaves the machine at rank ``last`` and comes into it at the next one.

    Args:
        alone: no other ring leaves it at another rank.
        middle: where it stands.
        first: the number of its first rank.
        links: draw also the links inside and to the cards, and leave what is outside to the caller.
    """
    from matplotlib.patches import Circle

    def at(rank: float, far: float) -> tuple[float, float]:
        angle = pi / 2 + 2 * pi * (rank + 0.5) / each
        return middle + far * cos(angle), far * sin(angle)

    def arrow(start: tuple[float, float], end: tuple[float, float], ring: bool) -> None:
        color, width = (OUT, 2.2) if ring else (WITHIN, 1.3)
        style = {"arrowstyle": "-|>", "color": color, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
        axis.annotate("", end, start, arrowprops=style, zorder=2)

    axis.add_patch(Circle((middle, 0), CARD, fc="#f4f4f4", ec=EDGE, zorder=0))
    for rank in range(each):
        leaves, enters = rank == last, rank == (last + 1) % each
        if not leaves:
            arrow(at(rank + 0.22, 0.97), at(rank + 0.78, 0.97), ring=True)
        if links:
            for other in range(rank):
                axis.plot(*zip(at(rank, 1), at(other, 1), strict=True), color=WITHIN, lw=0.6, zorder=1)
            ends = zip(at(rank, 1), at(rank, CARD), strict=True)
            axis.plot(*ends, color=OUT if leaves or enters else WITHIN, lw=1.3, zorder=1)
        else:
            if leaves or not alone:
                arrow(at(rank - 0.1, 1.2 if leaves else CARD), at(rank - 0.1, TIP), ring=leaves)
            if enters or not alone:
                arrow(at(rank + 0.1, TIP), at(rank + 0.1, 1.2 if enters else CARD + 0.12), ring=enters)
        colour = OUT if leaves or enters else IDLE if alone else WITHIN
        axis.plot(*at(rank, CARD), "s", ms=9, color=colour, mec=EDGE, zorder=3)
        axis.plot(*at(rank, 1), "o", ms=14 if links else 12, color="#143f70", zorder=4)
        axis.text(
            *at(rank, 1),
            str(first + rank),
            fontsize=TEXT,
            color="white",
            ha="center",
            va="center_baseline",
            zorder=5,
        )
    axis.set(xlim=(-TIP, TIP), ylim=(-TIP - 1.05, TIP + 0.2), aspect="equal")
    axis.axis("off")
