"""Chapter 18: what a prompt, a prefix and LoRA can change, what is trained, and what computes each place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VIRTUAL, TOKENS, GAP = 2, 3, 0.6  # places; the text reads across the gap
LAYERS = ("vectors", "layer 1", "layer 2", "layer 3")  # from below
COLOURS = {
    "prompt": "#e8c547",
    "prefix": "#7d5ba6",
    "LoRA": "#23614a",
}  # of each method, in all of the chapter
FROZEN = "#dcdcdc"


def plot_virtual_places(trained: Mapping[str, str] | None = None) -> Picture:
    """A panel for each method. A prompt trains vectors below the layers, a prefix keys and values in each of them,
    and LoRA trains matrices beside those of each layer.

    Args:
        trained: what stands beside a method's name: "0.08 million".
    """
    from matplotlib.figure import Figure
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    head = len(LAYERS)  # the row above the layers
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    panels = figure.subplots(1, 3, width_ratios=(7.1, 5.8, 5.8))
    for axis, title in zip(panels, ("prompt", "prefix", "LoRA"), strict=True):
        for row, layer in enumerate(LAYERS):
            if title == "prompt":
                axis.text(-0.2, row + 0.4, layer, ha="right", va="center", fontsize=TEXT)
            own = (title == "prompt") == (row == 0)
            if title != "LoRA" and (row or own):
                for place in range(VIRTUAL):
                    _place(axis, place, row, COLOURS[title] if own else FROZEN, "k v" if row else "")
            if title == "LoRA" and row:
                _place(axis, 0.9, row, COLOURS[title], "A B")
            if title == "prompt" and row:  # a layer computes the place from the one below
                for place in range(VIRTUAL):
                    axis.annotate(
                        "",
                        (place + 0.44, row + 0.06),
                        (place + 0.44, row - 0.26),
                        arrowprops={"arrowstyle": "-|>", "color": "#222222", "mutation_scale": 7},
                    )
            if row:
                axis.annotate(
                    "",
                    (2.5, row + 0.4),
                    (1.9, row + 0.4),
                    arrowprops={"arrowstyle": "->", "color": "#222222"},
                )
            for place in range(TOKENS):
                _place(axis, VIRTUAL + GAP + place, row, FROZEN)
        if title == "prompt":
            axis.text(-0.2, head + 0.4, "head", ha="right", va="center", fontsize=TEXT)
        for place in range(TOKENS):  # the head reads the text alone
            _place(axis, VIRTUAL + GAP + place, head, FROZEN)
        if title != "LoRA":
            axis.text(VIRTUAL / 2, -0.15, "virtual", ha="center", va="top", fontsize=TEXT)
        axis.text(VIRTUAL + GAP + TOKENS / 2, -0.15, "text", ha="center", va="top", fontsize=TEXT)
        beside = f": {trained[title]} trained" if trained else ""
        axis.set_title(title + beside, loc="left", fontsize=TITLE)
        axis.set(xlim=(-1.5 if title == "prompt" else -0.2, VIRTUAL + GAP + TOKENS), ylim=(-0.8, head + 1))
        axis.set_axis_off()
    looks = {
        "trained": COLOURS.values(),
        "computed": [FROZEN],
    }
    patches = [
        tuple(Patch(facecolor=colour, edgecolor="#444444") for colour in group) for group in looks.values()
    ]
    figure.legend(
        patches,  # pyright: ignore[reportArgumentType] - a tuple of patches is one entry
        looks.keys(),
        handler_map={tuple: HandlerTuple(ndivide=None)},
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=TEXT,
    )
    counts = "; ".join(f"{title}: {count}" for title, count in (trained or {}).items())
    return render(
        figure,
        "A prompt trains vectors below the layers, and frozen weights make their keys and values in every layer. "
        "A prefix trains keys and values in every layer, which the text reads, and no layer computes their "
        "places. LoRA trains matrices in every layer, which add to what is computed for the text. The head computes "
        "the text's places alone." + (f" Trained numbers: {counts}." if counts else ""),
    )


def _place(axis: Axes, place: float, row: int, colour: str, says: str = "") -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((place, row), 0.88, 0.8, facecolor=colour, edgecolor="#444444"))
    ink = "white" if colour in (COLOURS["prefix"], COLOURS["LoRA"]) else "#222222"
    axis.text(place + 0.44, row + 0.4, says, ha="center", va="center", fontsize=TEXT, color=ink)
