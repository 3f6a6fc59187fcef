"""Chapter 18's picture of where a prompt and a prefix sit: which places each layer computes, and what is trained."""

from __future__ import annotations

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

VIRTUAL, TOKENS = 3, 4
LAYERS = ("vectors", "layer 1", "layer 2", "layer 3")  # from below
TRAINED, COMPUTED = "#cc6a24", "#a9cbe8"


def plot_virtual_places() -> Picture:
    """Left a prompt: vectors below all layers, which compute their places. Right a prefix: keys and values in each."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    for axis, title in zip(figure.subplots(1, 2), ("prompt", "prefix"), strict=True):
        for row, layer in enumerate(LAYERS):
            axis.text(-0.2, row + 0.4, layer, ha="right", va="center", fontsize=TEXT)
            for place in range(VIRTUAL + TOKENS):
                virtual, trained = place < VIRTUAL, title == "prefix" if row else title == "prompt"
                if virtual and not (row or trained):
                    continue  # a prefix has no vectors
                colour = TRAINED if virtual and trained else COMPUTED
                axis.add_patch(Rectangle((place, row), 0.85, 0.8, facecolor=colour, edgecolor="#444444"))
                if virtual and trained and row:
                    axis.text(
                        place + 0.42, row + 0.4, "k v", ha="center", va="center", fontsize=TEXT, color="white"
                    )
        axis.text(VIRTUAL / 2, -0.15, "virtual", ha="center", va="top", fontsize=TEXT)
        axis.text(VIRTUAL + TOKENS / 2, -0.15, "text", ha="center", va="top", fontsize=TEXT)
        axis.set_title(title, loc="left", fontsize=TITLE)
        axis.set(xlim=(-1.8, VIRTUAL + TOKENS), ylim=(-0.8, len(LAYERS)))
        axis.set_axis_off()
    looks = {"trained": TRAINED, "computed in this step": COMPUTED}
    patches = [Patch(facecolor=colour, edgecolor="#444444", label=says) for says, colour in looks.items()]
    figure.legend(handles=patches, loc="outside upper right", ncols=2, frameon=False, fontsize=TEXT)
    return render(
        figure,
        "A prompt trains vectors below the layers, and every layer computes their places. "
        "A prefix trains keys and values in every layer, and no layer computes their places.",
    )
