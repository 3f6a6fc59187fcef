"""Chapter 00's picture of sharding: who holds which slice of which layer while each of them computes."""

from __future__ import annotations

from simulator.inputs.checks import at_least
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

OWN, BORROWED, COMING, EMPTY = "#1b3a5c", "#e8c547", "#f7edc4", "#ffffff"


def plot_borrowed_layer(gpus: int = 4, layers: int = 3) -> Picture:
    """A moment for each layer; in each a column for each GPU and a row for each layer, cut into slices.

    Raises:
        ValueError: fewer than two GPUs or layers.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    at_least(2, gpus=gpus, layers=layers)
    figure = Figure(figsize=(WIDTH, 0.75 + 0.36 * layers), layout="constrained")
    axes = figure.subplots(1, layers, sharey=True)
    slice_ = 0.86 / gpus  # a GPU is 1 wide, with a gap to the next one
    for computing, axis in enumerate(axes):
        borrowed = {computing: BORROWED, computing + 1: COMING}
        for gpu in range(gpus):
            for layer in range(layers):
                for part in range(gpus):
                    colour = OWN if part == gpu else borrowed.get(layer, EMPTY)
                    corner = (gpu + part * slice_, layer - 0.33)
                    axis.add_patch(
                        Rectangle(corner, slice_, 0.66, facecolor=colour, edgecolor="#888888", lw=0.6)
                    )
        axis.set_title(f"layer {computing + 1} computes", loc="left", fontsize=TITLE)
        axis.set(xlim=(-0.05, gpus), ylim=(layers - 0.5, -0.5))
        axis.set_xticks(
            [gpu + 0.43 for gpu in range(gpus)], [f"GPU {gpu}" for gpu in range(gpus)], fontsize=TEXT
        )
        axis.set_yticks(range(layers), [f"layer {layer + 1}" for layer in range(layers)], fontsize=TEXT)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    looks = {"its own slice": OWN, "borrowed from the others": BORROWED, "on its way": COMING}
    handles = [Patch(facecolor=colour, edgecolor="#888888", label=look) for look, colour in looks.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=TEXT, frameon=False)
    return render(
        figure,
        f"{gpus} GPUs and {layers} layers at {layers} moments. Each GPU holds its own slice of every layer. While a "
        "layer computes, each GPU has all slices of it, the next layer's are on their way, and those before are gone.",
    )
