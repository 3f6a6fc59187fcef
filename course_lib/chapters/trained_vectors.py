"""The drawing of where a method of prompt tuning puts its trained vectors: one panel for each method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRAINED, FROM_TRAINED, FROZEN = "#cc6a24", "#f3c09a", "#d2d2d2"
NAMES = {
    TRAINED: "trained",
    FROM_TRAINED: "computed from what is trained",
    FROZEN: "the text, in the frozen model",
}
LAYERS, VIRTUAL, TOKENS = 3, 2, 4  # how many are drawn


@dataclass(frozen=True)
class Places:
    """Where the virtual tokens of one method stand.

    Args:
        embeddings: their colour among the embeddings; None: they have none there.
        layers: their colour in each layer, from the first on; None: there are none.
        network: what the trained network below is called that computes their lowest row; None: there is none.
        gated: a trained gate stands beside each layer that has them.
    """

    embeddings: str | None
    layers: tuple[str | None, ...]
    network: str | None = None
    gated: bool = False


METHODS = {
    "prompt tuning": Places(TRAINED, (FROM_TRAINED,) * LAYERS),
    "P-tuning v1": Places(FROM_TRAINED, (FROM_TRAINED,) * LAYERS, network="encoder"),
    "prefix tuning": Places(None, (FROM_TRAINED,) * LAYERS, network="network"),
    "P-tuning v2": Places(None, (TRAINED,) * LAYERS),
    "LLaMA-Adapter": Places(None, (None, TRAINED, TRAINED), gated=True),
}


def plot_trained_vectors(methods: Mapping[str, Places] = METHODS) -> Picture:
    """A panel for each method. A column is a place of the sequence, virtual tokens first; rows are the embeddings
    and, above them, the layers.

    Raises:
        ValueError: there is no method, or one does not have ``LAYERS`` layers.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    if not methods or any(len(places.layers) != LAYERS for places in methods.values()):
        raise ValueError(f"there is nothing to draw: give at least one method, each with {LAYERS} layers")
    figure = Figure(figsize=(WIDTH, 2.75), layout="constrained")
    panels = figure.subplots(1, len(methods), squeeze=False)[0]
    for i, (axis, (title, places)) in enumerate(zip(panels, methods.items(), strict=True)):
        _panel(axis, places)
        axis.set_title(title, loc="left", fontsize=TITLE)
        if i == 0:
            names = ["embeddings", *(f"layer {layer}" for layer in range(1, LAYERS + 1))]
            axis.set_yticks([row + 0.5 for row in range(LAYERS + 1)], names, fontsize=TEXT)
    handles = [Patch(facecolor=colour) for colour in NAMES]
    figure.legend(handles, NAMES.values(), loc="outside lower center", ncols=3, fontsize=TEXT, frameon=False)
    return render(figure, _sentence(methods))


def _panel(axis: Axes, places: Places) -> None:
    for row, colour in enumerate((places.embeddings, *places.layers)):
        gated = places.gated and row > 0 and colour is not None
        for column in range(1 if gated else VIRTUAL):
            _cell(axis, column, row, colour, VIRTUAL if gated else 1)
        for column in range(TOKENS):
            _cell(axis, VIRTUAL + 0.4 + column, row, FROZEN)
        if gated:
            axis.text(VIRTUAL / 2, row + 0.5, "× g", ha="center", va="center", fontsize=TEXT, color="white")
    axis.text(VIRTUAL / 2, -0.15, "n", ha="center", va="top", fontsize=TEXT)
    axis.text(VIRTUAL + 0.4 + TOKENS / 2, -0.15, "text", ha="center", va="top", fontsize=TEXT)
    if places.network:
        from matplotlib.patches import Rectangle

        lowest = 0 if places.embeddings else 1
        axis.add_patch(Rectangle((-0.1, -1.75), 3.6, 0.75, facecolor=TRAINED, linewidth=0))
        axis.text(1.7, -1.4, places.network, ha="center", va="center", fontsize=TEXT, color="white")
        axis.annotate(
            "", (0.35, lowest - 0.05), (0.35, -1.0), arrowprops={"arrowstyle": "->", "color": "#444444"}
        )
    axis.set_xlim(-0.2, VIRTUAL + TOKENS + 0.6)
    axis.set_ylim(-1.8, LAYERS + 1.05)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def _cell(axis: Axes, column: float, row: int, colour: str | None, columns: int = 1) -> None:
    from matplotlib.patches import Rectangle

    if colour:
        axis.add_patch(
            Rectangle((column + 0.06, row + 0.08), columns - 0.12, 0.84, facecolor=colour, linewidth=0)
        )


def _sentence(methods: Mapping[str, Places]) -> str:
    said = []
    for title, places in methods.items():
        trained = [f"layer {i}" for i, colour in enumerate(places.layers, 1) if colour == TRAINED]
        trained = (["the embeddings"] if places.embeddings == TRAINED else []) + trained
        where = f"trained vectors in {', '.join(trained)}" if trained else f"the {places.network} is trained"
        said.append(" ".join(title.split()) + ": " + where + (", each with a gate" if places.gated else ""))
    return f"Where the trained vectors stand. {'; '.join(said)}."
