"""Chapter 09's picture of two nodes: what each GPU has inside its node, and which card its part of a message takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.chapters.layer_times import COMPUTING, SENDING
from simulator.inputs.hardware import Hardware
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EDGE = {"edgecolor": "#555555", "linewidth": 0.8}
GPU, CARD, BETWEEN = 1.0, 0.6, 2.5  # how wide each is drawn, in units of the axis
LINK = 0.25  # from a GPU to its card


def plot_two_nodes(gpu: Hardware) -> Picture:
    """Two nodes of GPUs, a card beside each, and what the links really reach: ``Link.rate``."""
    from matplotlib.figure import Figure

    count = gpu.node_size
    inside, card = gpu.node.rate / 1e9, gpu.network.rate / 1e9
    figure = Figure(figsize=(WIDTH, 0.95 + 0.25 * count), layout="constrained")
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
            axis.plot((near, far), (y + 0.4, y + 0.4), color="#555555", linewidth=1)
        axis.text(left + GPU / 2, 0.75, f"node {node}", ha="center", fontsize=TITLE)
    for r in range(count):
        y = -r - 0.4
        axis.plot((half, across), (y, y), color=SENDING, linewidth=2)
        said = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        axis.text(
            (half + across) / 2,
            y,
            f"1/{count} of a message",
            ha="center",
            va="center",
            fontsize=TEXT,
            bbox=said,
        )
    axis.text(
        (half + across) / 2,
        0.75,
        f"{card:.0f} GB/s through each card\n{count} × {card:.0f} = {count * card:.0f} GB/s in all",
        ha="center",
        va="center",
        fontsize=TEXT,
    )
    for x, turn in ((-0.3, 90), (across + half + 0.3, 270)):
        said = f"NVLink: {inside:.0f} GB/s for each GPU"
        axis.text(x, -count / 2, said, ha="center", va="center", rotation=turn, fontsize=TEXT)
    axis.set(xlim=(-0.5, across + half + 0.5), ylim=(-count - 0.1, 1.4))
    return render(
        figure,
        f"Two nodes of {count} GPUs, each with a network card. Inside a node each GPU sends {inside:.0f} GB/s over "
        f"NVLink. Each of the {count} cards of a node sends {card:.0f} GB/s to its counterpart, together "
        f"{count * card:.0f}, and carries 1/{count} of a message.",
    )


def _box(axis: Axes, x: float, y: float, width: float, text: str, colour: str) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((x, y), width, 0.8, facecolor=colour, **EDGE))
    axis.text(x + width / 2, y + 0.38, text, ha="center", va="center", fontsize=TEXT)
