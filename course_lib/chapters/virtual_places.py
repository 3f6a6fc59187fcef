"""Chapter 18: what all weights, LoRA, a prefix and a prompt train, and what is computed for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = 2  # places, where one name stands below all of them
LAYERS = ("layer 1", "layer 2", "layer 3", "layer 4")  # of the task GPT, from below
COLOURS = {
    "all weights": "#1b3a5c",
    "LoRA": "#23614a",
    "prefix": "#7d5ba6",
    "prompt": "#e8c547",
}  # of each method, in all of the chapter
COMPUTED, FROZEN = "#dcdcdc", "#ffffff"
BESIDE = {
    "all weights": 0.0,
    "LoRA": 1.4,
    "prefix": 2.0,
    "prompt": 2.0,
}  # width between the weights and the text
GAP = 0.7


def plot_virtual_places(
    below: Mapping[str, str] | None = None,
    only: Sequence[str] = tuple(BESIDE),
    layers: Sequence[str] = LAYERS,
    virtual: str | Sequence[str] = "virtual\n2 of 8",
    text: str | Sequence[str] = "text",
) -> Picture:
    """A panel for each method: the weights of a layer, what the method puts beside them, and the text's places.

    Args:
        below: what stands below a method's name: "0.08 million".
        only: the methods that are drawn.
        layers: their names, from below.
        virtual, text: what stands below each place. One name: it stands below two of them.
    """
    from matplotlib.figure import Figure

    beside = BESIDE | dict.fromkeys(("prefix", "prompt"), how_many(virtual))
    ends = {
        title: 1 + GAP + width + (GAP if width else 0) + how_many(text)
        for title, width in beside.items()
        if title in only
    }
    first = next(iter(ends))
    left = {
        title: -2.3 * (1 if how_many(text) == DRAWN else 1.2) if title == first else -0.7 for title in ends
    }
    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    widths = [ends[title] - left[title] for title in ends]
    panels = figure.subplots(1, len(ends), squeeze=False, width_ratios=widths)[0]
    for axis, title in zip(panels, ends, strict=True):
        _draw(axis, title, len(layers), virtual, text, ends[title] - how_many(text))
        if title == first:
            for row, layer in enumerate(("embedding", *layers, "head")):
                axis.text(-0.25, row + 0.4, layer, ha="right", va="center", fontsize=TEXT)
        amount = f"\n{below[title]}" if below else ""
        axis.set_title(title + amount, loc="left", x=-left[title] / (ends[title] - left[title]))
        axis.title.set_fontsize(TITLE)
        axis.set(xlim=(left[title], ends[title]), ylim=(-1.1, len(layers) + 2))
        axis.set_axis_off()
    _legend(figure, [COLOURS[title] for title in ends])
    counts = "; ".join(f"{title}: {count}" for title, count in (below or {}).items())
    says = {
        "all weights": "with all weights, every W is trained",
        "LoRA": "LoRA trains A and B, which are added to a frozen W",
        "prefix": "a prefix trains keys and values in every layer, which the text reads",
        "prompt": "a prompt trains vectors below the layers, and each layer computes their keys and values, which "
        "the text reads",
    }
    return render(
        figure,
        "Embedding, layers and head from below, each with its weights W and the places that it computes: "
        + "; ".join(says[title] for title in ends)
        + ". The head computes the text's places alone."
        + (f" {counts}." if counts else ""),
    )


def how_many(places: str | Sequence[str]) -> int:
    return DRAWN if isinstance(places, str) else len(places)


def _draw(
    axis: Axes, title: str, layers: int, virtual: str | Sequence[str], text: str | Sequence[str], start: float
) -> None:
    beside = 1 + GAP
    reads = title in ("prefix", "prompt")  # keys and values beside its own
    for row in range(layers + 2):
        layer = 0 < row <= layers
        for place in range(how_many(text)):
            _box(axis, start + place, row, COMPUTED)
        _box(axis, 0, row, COLOURS[title] if title == "all weights" else FROZEN, "W")
        if layer and title == "LoRA":
            axis.text(beside - 0.4, row + 0.4, "+", ha="center", va="center", fontsize=TITLE)
            _box(axis, beside - 0.2, row, COLOURS[title], "AB", width=1.2)
        for place in range(how_many(virtual)):
            if title == "prompt" and row == 0:
                _box(axis, beside + place, row, COLOURS[title])
            if reads and layer:
                own = COLOURS[title] if title == "prefix" else COMPUTED
                _box(axis, beside + place, row, own, "kv")
            if title == "prompt" and layer:  # a layer reads the places below it
                _arrow(axis, (beside + place + 0.44, row - 0.24), (beside + place + 0.44, row + 0.06))
        if reads and layer:
            _arrow(axis, (start - GAP - 0.06, row + 0.4), (start - 0.02, row + 0.4))
    for left, below in [(beside, virtual)] * reads + [(start, text)]:
        named = [below] if isinstance(below, str) else below
        wide = how_many(below) / len(named)
        for place, name in enumerate(named):
            x = left + wide * place + wide / 2 - 0.06
            axis.text(x, -0.15, name, ha="center", va="top", fontsize=TEXT)


def _arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    looks = {"arrowstyle": "-|>", "color": "#222222", "mutation_scale": 7, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", end, start, arrowprops=looks)


def _box(axis: Axes, x: float, row: int, colour: str, says: str = "", width: float = 0.88) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((x, row), width, 0.8, facecolor=colour, edgecolor="#444444"))
    ink = "#222222" if colour in (COLOURS["prompt"], COMPUTED, FROZEN) else "white"
    axis.text(x + width / 2, row + 0.4, says, ha="center", va="center", fontsize=TEXT, color=ink)


def _legend(figure, trained: Sequence[str]) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    looks = {"trained": trained, "frozen weights": [FROZEN], "a computed place": [COMPUTED]}
    entries = [tuple(Patch(facecolor=one, edgecolor="#444444") for one in group) for group in looks.values()]
    arrow = Line2D([], [], color="#222222", marker=r"$\rightarrow$", linestyle="", markersize=13)
    figure.legend(
        [*entries, arrow],
        [*looks, "is read by"],
        handler_map={tuple: HandlerTuple(ndivide=None)},
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=TEXT,
        columnspacing=1.4,
    )
