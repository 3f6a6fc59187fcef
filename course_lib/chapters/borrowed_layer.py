"""Chapter 00's pictures of sharding: who holds which slices while a layer computes, gathered or shared by a pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.inputs.checks import at_least
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OWN, BORROWED, COMING, EMPTY = "#1b3a5c", "#e8c547", "#f7edc4", "#ffffff"


def plot_borrowed_layer(gpus: int = 4, layers: int = 3) -> Picture:
    """A moment for each layer; in each a column for each GPU and a row for each layer, cut into slices.

    Raises:
        ValueError: fewer than two GPUs or layers.
    """
    from matplotlib.figure import Figure

    at_least(2, gpus=gpus, layers=layers)
    figure = Figure(figsize=(WIDTH, 0.75 + 0.36 * layers), layout="constrained")
    axes = figure.subplots(1, layers, sharey=True)
    for computing, axis in enumerate(axes):
        borrowed = {computing: BORROWED, computing + 1: COMING}
        for gpu in range(gpus):
            for layer in range(layers):
                others = borrowed.get(layer, EMPTY)
                _draw_gpu(axis, gpu, layer, [OWN if part == gpu else others for part in range(gpus)])
        axis.set_title(f"layer {computing + 1} computes", loc="left", fontsize=TITLE)
        axis.set(ylim=(layers - 0.5, -0.5))
        _name_gpus(axis, [f"GPU {gpu}" for gpu in range(gpus)])
        axis.set_yticks(range(layers), [f"layer {layer + 1}" for layer in range(layers)], fontsize=TEXT)
    _legend(figure, {"its own slice": OWN, "borrowed from the others": BORROWED, "on its way": COMING})
    return render(
        figure,
        f"{gpus} GPUs and {layers} layers at {layers} moments. Each GPU holds its own slice of every layer. While a "
        "layer computes, each GPU has all slices of it, the next layer's are on their way, and those before are gone.",
    )


def plot_shared_matrix() -> Picture:
    """A matrix on four GPUs, gathered whole for a text each, or shared: the halves of it by two for one text."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 1.7), layout="constrained")
    titles = {1: "tp = 1: each multiplies by a whole matrix", 2: "tp = 2: each multiplies by half of it"}
    for axis, (tp, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        width = 4 // tp  # slices that a GPU multiplies by
        for gpu in range(4):
            first = width * (gpu % tp)
            parts = [BORROWED if first <= part < first + width else EMPTY for part in range(4)]
            parts[first + gpu // tp] = OWN
            _draw_gpu(axis, gpu, 0, parts)
        for left in (0, 2) if tp == 2 else ():
            arrow = {"arrowstyle": "<->", "connectionstyle": "arc3,rad=-0.3", "color": "#222222"}
            axis.annotate("", (left + 1.43, -0.36), (left + 0.43, -0.36), arrowprops=arrow)
            axis.text(left + 0.93, -0.72, "results", ha="center", va="bottom", fontsize=TEXT)
        axis.set_title(title, loc="left", fontsize=TITLE)
        axis.set(ylim=(0.4, -1.1), yticks=[])
        _name_gpus(axis, [f"GPU {gpu}\ntext {'ABCD'[gpu // tp]}" for gpu in range(4)])
    _legend(figure, {"its own slice": OWN, "borrowed from the others": BORROWED})
    return render(
        figure,
        "A matrix on 4 GPUs. With tp = 1 each borrows all slices that it lacks, for a text of its own. With tp = 2 two "
        "GPUs have one text; each borrows only its half of the matrix, and they send each other the results.",
    )


def _draw_gpu(axis: Axes, gpu: int, row: int, parts: list[str]) -> None:
    """The slices of a matrix or layer on one GPU, which is 1 wide, with a gap to the next one."""
    from matplotlib.patches import Rectangle

    width = 0.86 / len(parts)
    for part, colour in enumerate(parts):
        corner = (gpu + part * width, row - 0.33)
        axis.add_patch(Rectangle(corner, width, 0.66, facecolor=colour, edgecolor="#888888", lw=0.6))


def _name_gpus(axis: Axes, names: list[str]) -> None:
    axis.set_xlim(-0.05, len(names))
    axis.set_xticks([gpu + 0.43 for gpu in range(len(names))], names, fontsize=TEXT)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def _legend(figure: Figure, looks: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, edgecolor="#888888", label=look) for look, colour in looks.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=TEXT, frameon=False)
