"""Chapter 09's picture of two nodes: the route of one all-reduce, and what each link carries of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from course_lib.chapters.layer_times import COMPUTING, SENDING
from simulator.inputs.hardware import Hardware
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EDGE = {"edgecolor": "#555555", "linewidth": 0.8}
GPU, CARD, BETWEEN = 1.0, 0.6, 2.5  # how wide each is drawn, in units of the axis
LINK = 0.25  # from a GPU to its card


def plot_two_nodes(gpu: Hardware, message: float) -> Picture:
    """Two nodes of GPUs, a card beside each, what the links really reach (``Link.rate``), and what they carry.

    One ring for each card: its piece of the message goes round all GPUs, and crosses by two cards.

    Args:
        gpu: with its links.
        message: bytes that all GPUs add up in one all-reduce.
    """
    from matplotlib.figure import Figure

    count = gpu.node_size
    inside, card = gpu.node.rate / 1e9, gpu.network.rate / 1e9
    hop = 2 * (2 * count - 1) / (2 * count) * message / count / 1e6  # what a GPU passes on of one ring, MB
    figure = Figure(figsize=(WIDTH, 1.4 + 0.25 * count), layout="constrained")
    axis = figure.subplots()
    axis.set_axis_off()
    half = GPU + LINK + CARD  # from a node's outer edge to its cards' outer edge
    across = half + BETWEEN
    for node, (left, cards) in enumerate(((0.0, GPU + LINK), (across + CARD + LINK, across))):
        for r in range(count):
            y = -r - 0.8
            _box(axis, left, y, GPU, f"GPU {count * node + r}", COMPUTING)
            _box(axis, cards, y, CARD, "card", "#f3c09a")
            near, far = (left + GPU, cards) if node == 0 else (cards + CARD, left)
            axis.plot((near, far), (y + 0.4, y + 0.4), **_route(r, count))
            if r:
                middle = left + GPU / 2
                axis.plot((middle, middle), (y + 0.8, y + 1.0), color=SENDING, linewidth=2)
        axis.text(left + GPU / 2, 0.75, f"node {node}", ha="center", fontsize=TITLE)
    for r in range(count):
        y = -r - 0.4
        axis.plot((half, across), (y, y), **_route(r, count))
    for r, arrow in ((0, "←"), (count - 1, "→")):
        axis.text(
            (half + across) / 2,
            -r - 0.4,
            f"{arrow} {hop:.3g} MB",
            ha="center",
            va="center",
            fontsize=TEXT,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )
    axis.text(
        (half + across) / 2,
        0.75,
        f"a card, {card:.0f} GB/s,\nfor one ring",
        ha="center",
        va="center",
        fontsize=TEXT,
    )
    for x, turn in ((-0.3, 90), (across + half + 0.3, 270)):
        said = f"NVLink, {inside:.0f} GB/s, for all {count} rings"
        axis.text(x, -count / 2, said, ha="center", va="center", rotation=turn, fontsize=TEXT)
    width = (across + half) / count
    for piece in range(count):
        colour, ink = (SENDING, "white") if piece == 0 else ("#e4e4e4", "black")
        _box(axis, piece * width, 1.7, width, f"piece {piece + 1}", colour, ink)
    axis.text(0, 2.75, f"a message, {message / 1e6:.0f} MB", fontsize=TEXT)
    axis.set(xlim=(-0.5, across + half + 0.5), ylim=(-count - 0.1, 3.2))
    return render(
        figure,
        f"Two nodes of {count} GPUs, each with a network card, and a message of {message / 1e6:.0f} MB in {count} "
        f"pieces, a ring for each. Of each piece a GPU sends {hop:.3g} MB. NVLink, {inside:.0f} GB/s, is for all "
        f"{count} rings, a card, {card:.0f} GB/s, for one. The first ring is marked: down node 0, over the last "
        "card, and back over the first.",
    )


def _route(r: int, count: int) -> dict[str, Any]:
    """The marked ring crosses at the first and at the last card."""
    marked = r in (0, count - 1)
    return {"color": SENDING if marked else "#bbbbbb", "linewidth": 2 if marked else 1}


def _box(axis: Axes, x: float, y: float, width: float, text: str, colour: str, ink: str = "black") -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((x, y), width, 0.8, facecolor=colour, **EDGE))
    axis.text(x + width / 2, y + 0.38, text, ha="center", va="center", fontsize=TEXT, color=ink)
