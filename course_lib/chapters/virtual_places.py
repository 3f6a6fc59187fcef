"""Chapter 18: what a prompt, a prefix and LoRA can change, what is trained, and what computes each place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
SHADES = {  # of the tasks in one batch
    "prompt": ("#e8c547", "#f7ebbd", "#a8861a"),
    "LoRA": ("#23614a", "#c9e0d3", "#6fa88b"),
}


def plot_virtual_places(trained: Mapping[str, str] | None = None) -> Picture:
    """A panel for each method. A prompt trains vectors below the layers, a prefix keys and values in each of them,
    and LoRA trains matrices beside those of each layer.

    Args:
        trained: what stands beside a method's name: "0.08 million".
    """
    from matplotlib.figure import Figure
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
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
        if title != "LoRA":
            axis.text(VIRTUAL / 2, -0.15, "virtual", ha="center", va="top", fontsize=TEXT)
        axis.text(VIRTUAL + GAP + TOKENS / 2, -0.15, "text", ha="center", va="top", fontsize=TEXT)
        beside = f": {trained[title]} trained" if trained else ""
        axis.set_title(title + beside, loc="left", fontsize=TITLE)
        axis.set(xlim=(-1.5 if title == "prompt" else -0.2, VIRTUAL + GAP + TOKENS), ylim=(-0.8, len(LAYERS)))
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
        "places. LoRA trains matrices in every layer, which add to what is computed for the text."
        + (f" Trained numbers: {counts}." if counts else ""),
    )


def plot_batch_of_tasks(tasks: Sequence[str], layers: int, matrices: int) -> Picture:
    """One batch: a row for each text. Its task's vectors stand before the text, or its task's A and B at each matrix.

    Args:
        tasks: of each text, at most three different ones.
        layers: of the model.
        matrices: of the model, with LoRA at each.

    Raises:
        ValueError: there is no text, or there are more than three tasks.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(tasks))
    if not 1 <= len(names) <= len(SHADES["prompt"]):
        raise ValueError(f"give one to three different tasks, not {len(names)}")
    figure = Figure(figsize=(WIDTH, 0.7 + 0.42 * len(tasks)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(10.4, 9.1))
    rows = len(tasks)
    for row, task in enumerate(reversed(tasks)):
        which = names.index(task)
        left.text(-0.2, row + 0.4, task, ha="right", va="center", fontsize=TEXT)
        for place in range(VIRTUAL):
            _place(left, place, row, SHADES["prompt"][which])
        for axis, start in ((left, VIRTUAL), (right, 0)):
            for place in range(TOKENS):
                _place(axis, start + place, row, FROZEN)
            end = start + TOKENS
            axis.annotate(
                "",
                (end + 0.7, row + 0.4),
                (end, row + 0.4),
                arrowprops={"arrowstyle": "->", "color": "#222222"},
            )
        right.text(TOKENS + 2.15, row + 0.4, "+", ha="center", va="center", fontsize=TEXT)
        _place(right, TOKENS + 2.4, row, SHADES["LoRA"][which], "A B")
    _tall(left, VIRTUAL + TOKENS + 0.8, 2.4, rows, f"{layers} layers,\nunchanged")
    _tall(right, TOKENS + 0.8, 1.1, rows, "a matrix")
    right.text(TOKENS + 3.5, rows / 2 - 0.1, f"× {matrices}", va="center", fontsize=1.6 * TITLE)
    left.set_title("prompts: once, in the input", loc="left", fontsize=TITLE)
    right.set_title("LoRA: at each matrix", loc="left", fontsize=TITLE)
    left.set(xlim=(-2, 8.4), ylim=(-0.15, rows))
    right.set(xlim=(-0.2, 8.9), ylim=(-0.15, rows))
    for axis in (left, right):
        axis.set_axis_off()
    return render(
        figure,
        f"A batch of {rows} texts: {', '.join(tasks)}. With prompts its task's vectors stand before each text, and "
        f"the {layers} layers are unchanged. With LoRA its task's A and B are added at each of {matrices} matrices.",
    )


def _tall(axis: Axes, start: float, width: float, rows: int, says: str) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((start, 0), width, rows - 0.2, facecolor=FROZEN, edgecolor="#444444"))
    turned = 90 if width < 2 else 0
    axis.text(
        start + width / 2, rows / 2 - 0.1, says, ha="center", va="center", rotation=turned, fontsize=TEXT
    )


def _place(axis: Axes, place: float, row: int, colour: str, says: str = "") -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((place, row), 0.88, 0.8, facecolor=colour, edgecolor="#444444"))
    ink = "white" if colour in (COLOURS["prefix"], COLOURS["LoRA"]) else "#222222"
    axis.text(place + 0.44, row + 0.4, says, ha="center", va="center", fontsize=TEXT, color=ink)
