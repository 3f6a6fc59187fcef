"""The drawing of a machine's network cards, and of what rings send out of it through each (chapter 04)."""

from __future__ import annotations

from math import cos, pi, sin
from typing import TYPE_CHECKING

from simulator.inputs.checks import at_least
from simulator.inputs.hardware import Hardware, Link
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, human
from simulator.predict.collective_time import all_reduce_rounds, all_reduce_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OUT, WITHIN, IDLE, EDGE = "#cc6a26", "#7d99b3", "#d9d9d9", "#8a8a8a"
CARD, TIP = 1.6, 2.4  # how far from the middle, where a rank is 1 away


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
    """A machine of eight ranks in one ring, and in eight rings, each with its part."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    shown = {
        "one ring: one card sends": (1, [each - 1]),
        "eight rings: each card sends and receives": (each, [*range(each)]),
    }
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    told = []
    for axis, (name, (rings, last)) in zip(figure.subplots(1, len(shown)), shown.items(), strict=True):
        size = payload * max(through_cards(ranks, each, rings))
        where = "one" if len(last) == 1 else "each"
        ends = (
            f"{human(float(f'{size:.2g}'))} through {where}",
            f"network card: {1e3 * size / card.rate:.0f} ms",
        )
        told.append(f"{name}: {' '.join(ends)}")
        axis.set_title(name, fontsize=TITLE)
        axis.text(0, -TIP - 0.35, "\n".join(ends), fontsize=TEXT, ha="center", va="top")
        _draw_machine(axis, each, last)
    signs = [Line2D([], [], marker="s", ls="", ms=9, color=c, mec=EDGE) for c in (OUT, WITHIN, IDLE)]
    figure.legend(
        signs,
        ["network card that sends", "one that only receives", "unused"],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=TEXT,
    )
    return render(
        figure, f"A machine of {each} of {ranks:,} ranks, each with a network card. {'; '.join(told)}."
    )


def plot_machine(hardware: Hardware) -> Picture:
    """The GPUs and the network cards of a machine, and the links inside it, before anything is sent."""
    from matplotlib.figure import Figure

    each = hardware.node_size
    inside, out = (
        f"{1e6 * link.latency:.0f} µs, and {_two(1e3 * link.seconds(1e9, 0))} ms for 1 GB"
        for link in (hardware.node, hardware.network)
    )
    figure = Figure(figsize=(WIDTH, 2.4), layout="constrained")
    axis = figure.subplots()
    _draw_machine(axis, each, [])
    axis.set_ylim(-CARD - 0.25, CARD + 0.25)
    axis.set_xlim(-6, 6)
    for told, (x, y), end in (
        (f"links between all GPUs:\n{inside}", (-2.2, 0.9), (-0.55, 0.5)),
        ("a rank's GPU", (2.4, -0.45), (1.2, -0.4)),
        (f"its network card:\n{out}", (2.4, 0.85), (1.7, 0.65)),
    ):
        axis.annotate(
            told,
            end,
            (x, y),
            fontsize=TEXT,
            ha="left" if x > 0 else "right",
            va="center",
            arrowprops={"arrowstyle": "-", "color": EDGE, "shrinkB": 0},
        )
    return render(
        figure,
        f"A machine: {each} GPUs with links between them, {inside}, each with its own network card, {out}.",
    )


def plot_trees(ranks: int, payload: float, hardware: Hardware) -> Picture:
    """The parts of an all-reduce in trees over machines, four of which are drawn, and their times."""
    from matplotlib.figure import Figure

    each = hardware.node_size
    machines, part = ranks // each, payload / each
    inside = _two(1e3 * hardware.node.seconds((each - 1) * part, each - 1))
    took = _two(1e3 * all_reduce_seconds("tree", part, machines, hardware.network))
    steps = {
        "inside a machine": f"1. reduce-scatter: {inside} ms\n3. all-gather: {inside} ms",
        f"2. in {each} trees": f"{all_reduce_rounds('tree', machines)} rounds: {took} ms",
    }
    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    for axis, (name, told) in zip(figure.subplots(1, 2), steps.items(), strict=True):
        axis.set_title(name, fontsize=TITLE)
        axis.text(0, -TIP + 0.1, told, fontsize=TEXT, ha="center", va="top")
        if "tree" in name:
            _draw_machines(axis, each, [(2, 0), (3, 1), (1, 0)], "<|-|>")
        else:
            _draw_machine(axis, each, [], links=False)
        axis.set_ylim(-TIP - 0.8, CARD + 0.2)
    shown = "; ".join(f"{name}: {' '.join(told.split())}" for name, told in steps.items())
    return render(figure, f"An all-reduce in trees; 4 of {machines} machines. {shown}.")


def _two(number: float) -> str:
    """Two digits."""
    return f"{number:.2g}" if number < 10 else f"{number:.0f}"


def _draw_machines(axis: Axes, each: int, ways: list[tuple[int, int]], style: str) -> None:
    """Four machines, two in a row; on each way a machine's ranks send their eighths to the same ranks of another."""
    from matplotlib.patches import Circle

    far, gap = 1.05, 0.65
    places = [(-far, far), (far, far), (-far, -far), (far, -far)]
    for x, y in places:
        axis.add_patch(Circle((x, y), 0.6, fc="#f4f4f4", ec=EDGE, zorder=0))
        for rank in range(each):
            angle = pi / 2 - 2 * pi * (rank + 0.5) / each
            axis.plot(x + 0.42 * cos(angle), y + 0.42 * sin(angle), "o", ms=4.5, color="#143f70", zorder=2)
    props = {"arrowstyle": style, "color": OUT, "lw": 0.9, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 6}
    for start, end in ways:
        (x, y), (to_x, to_y) = places[start], places[end]
        along_x, along_y = (to_x - x) / (2 * far), (to_y - y) / (2 * far)
        for rank in range(each):
            off = 0.11 * (rank - (each - 1) / 2)
            side_x, side_y = off * abs(along_y), off * abs(along_x)
            axis.annotate(
                "",
                (to_x - gap * along_x + side_x, to_y - gap * along_y + side_y),
                (x + gap * along_x + side_x, y + gap * along_y + side_y),
                arrowprops=props,
            )
    axis.set(xlim=(-TIP, TIP), aspect="equal")
    axis.axis("off")


def _draw_machine(axis: Axes, each: int, last: list[int], links: bool = True) -> None:
    """The ring leaves the machine at each rank of ``last``, and comes into it at the next one.

    Without any ``last`` either the links are drawn, or a ring that stays inside.
    """
    from matplotlib.patches import Circle

    def at(rank: float, far: float) -> tuple[float, float]:
        angle = pi / 2 - 2 * pi * (rank + 0.5) / each
        return far * cos(angle), far * sin(angle)

    def arrow(start: tuple[float, float], end: tuple[float, float], color: str, width: float) -> None:
        style = {"arrowstyle": "-|>", "color": color, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
        axis.annotate("", end, start, arrowprops=style, zorder=2)

    axis.add_patch(Circle((0, 0), CARD, fc="#f4f4f4", ec=EDGE, zorder=0))
    whole = len(last) == each
    for rank in range(each):
        enters = (rank - 1) % each in last
        if links and not last:
            for other in range(rank):
                axis.plot(*zip(at(rank, 1), at(other, 1), strict=True), color=WITHIN, lw=0.6, zorder=1)
            axis.plot(*zip(at(rank, 1), at(rank, CARD), strict=True), color=WITHIN, lw=1.3, zorder=1)
        elif whole or rank not in last:
            arrow(at(rank + 0.22, 0.97), at(rank + 0.78, 0.97), WITHIN, 1.3)
        if rank in last:
            arrow(at(rank, 1.2), at(rank, TIP), OUT, 2)
        if enters and whole:  # a card sends and receives at the same time
            arrow(at(rank + 0.2, TIP), at(rank + 0.12, CARD + 0.12), WITHIN, 1.3)
        elif enters:
            arrow(at(rank, TIP), at(rank, 1.2), WITHIN, 1.3)
        colour = OUT if rank in last else WITHIN if enters else IDLE
        axis.plot(*at(rank, CARD), "s", ms=9, color=colour, mec=EDGE, zorder=3)
        axis.plot(*at(rank, 1), "o", ms=12, color="#143f70", zorder=4)
        axis.text(
            *at(rank, 1), str(rank), fontsize=TEXT, color="white", ha="center", va="center_baseline", zorder=5
        )
    axis.set(xlim=(-TIP, TIP), ylim=(-TIP - 1.05, TIP + 0.2), aspect="equal")
    axis.axis("off")
