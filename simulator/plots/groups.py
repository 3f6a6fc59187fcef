"""The drawing of groups: every rank once for each axis, coloured by the group that it belongs to there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.inputs.checks import at_least
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

# Twelve colours that are told apart by lightness, too, when neighbours have neighbouring ones.
COLOURS = (
    "#1b3a5c", "#a9cbe8", "#23614a", "#8fb99f", "#cc6a24", "#f0e3c4",
    "#7d5ba6", "#e8c547", "#4a86ba", "#dcdcdc", "#8c2d2d", "#e5a9a9",
)  # fmt: skip
GAP = 0.35  # between two nodes, in widths of a rank


def plot_groups(groups: Mapping[str, Sequence[Sequence[int]]], node_size: int = 8) -> Picture:
    """One row of ranks for each axis; ranks of one group have one colour and one letter.

    >>> plot_groups({"tp": [[0, 1], [2, 3]], "dp": [[0, 2], [1, 3]]}, node_size=4)    # doctest: +SKIP

    Args:
        groups: for each axis the groups along it; together they hold every rank once.
        node_size: ranks of a node, which are drawn in one frame.

    Raises:
        ValueError: there is nothing to draw, or the groups of an axis do not hold every rank once.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    at_least(1, node_size=node_size)
    if not groups:
        raise ValueError("there is nothing to draw: give the groups of at least one axis")
    ranks = len([rank for group in next(iter(groups.values())) for rank in group])
    for axis, of_axis in groups.items():
        if sorted(rank for group in of_axis for rank in group) != list(range(ranks)):
            raise ValueError(f"the groups of {axis} do not hold each of the {ranks} ranks once")
    nodes = -(-ranks // node_size)
    figure = Figure(figsize=(WIDTH, 0.5 + 0.62 * len(groups)), layout="constrained")
    axes = figure.subplots()

    def left(rank: int) -> float:
        return rank + GAP * (rank // node_size)

    for row, of_axis in enumerate(groups.values()):
        for number, group in enumerate(of_axis):
            colour = COLOURS[number % len(COLOURS)]
            ink = "white" if _is_dark(colour) else "black"
            for rank in group:
                axes.add_patch(Rectangle((left(rank) + 0.04, row - 0.36), 0.92, 0.72, facecolor=colour))
                text = f"{rank}{_letter(number)}"
                axes.text(left(rank) + 0.5, row, text, ha="center", va="center", color=ink, fontsize=TEXT)
    for node in range(nodes):
        first, last = node * node_size, min(ranks, (node + 1) * node_size) - 1
        frame = (left(first) - 0.08, -0.55), left(last) - left(first) + 1.16, len(groups) + 0.1
        axes.add_patch(Rectangle(*frame, fill=False, edgecolor="#888888", linewidth=1))
        middle = (left(first) + left(last) + 1) / 2
        axes.text(middle, -0.68, f"node {node}", ha="center", va="bottom", fontsize=TITLE)
    axes.set_xlim(-0.2, left(ranks - 1) + 1.2)
    axes.set_ylim(len(groups) - 0.35, -1.25)
    axes.set_yticks(range(len(groups)), [f"{axis} groups" for axis in groups], fontsize=TEXT)
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    return render(
        figure, f"The groups of {ranks} ranks on {nodes} nodes. " + " ".join(map(_said, groups.items()))
    )


def _said(axis_and_groups: tuple[str, Sequence[Sequence[int]]]) -> str:
    axis, groups = axis_and_groups
    return f"Groups along {axis}: " + ", ".join(" ".join(map(str, group)) for group in groups) + "."


def _letter(number: int) -> str:
    return chr(ord("a") + number % 26)


def _is_dark(colour: str) -> bool:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 140
