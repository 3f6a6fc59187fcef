"""Chapter 12's picture of 8 ranks: what each holds, and what it adds up with others or sends."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.chapters.three_dimensions import digits_of
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

# axis -> what it divides, the names of its halves, and the colour of its arrows
CUTS = {
    "tp": ("the layers' matrices", ("one", "other"), "#cc6a24"),
    "dp": ("the batch", ("first", "second"), "#4a86ba"),
    "pp": ("the layers", ("first", "last"), "#23614a"),
}
EMBEDDING, LAYERS = "#222222", ("#b98b4e", "#c06c84")  # the layers of each stage have a colour
WIDE, HIGH = 1.05, 0.9  # of a rank
RIGHT, DOWN, STAGE = 2.35, 2.1, 5.4  # from a rank to the next along tp, dp and pp
EDGE = 0.75  # from the middle of a rank to the frame of its stage
# the colour of an arrow, its two ends, and what is written beside it: where, how and what
GAP = (RIGHT + STAGE) / 2  # the middle between the stages
ENDS = RIGHT + EDGE, STAGE - EDGE
ARROWS = {
    "tp": (RIGHT / 2, -0.1, "center", "bottom", "sum of\nactivations"),
    "dp": (0.1, DOWN / 2, "left", "center", "sum of\nthe weights'\ngradients"),
    "pp": (GAP, -0.25, "center", "bottom", "activations →"),
}


def plot_held(sizes: Mapping[str, int]) -> Picture:
    """Two stages of 2 x 2 ranks, and an arrow between those that add something up or send it.

    Raises:
        ValueError: an axis is not cut in two.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    if dict(sizes) != dict.fromkeys(CUTS, 2):
        raise ValueError(f"only halves are drawn, so tp, dp and pp must be 2, not {dict(sizes)}")
    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    axes, told = figure.subplots(), []

    def arrow(colour: str, start: tuple[float, float], end: tuple[float, float], bent: float = 0) -> None:
        style = {"arrowstyle": "<->", "color": colour, "lw": 2, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", end, start, arrowprops=style | {"connectionstyle": f"arc3,rad={bent}"})

    def block(x: float, y: float, wide: float, high: float, colour: str) -> None:
        axes.add_patch(Rectangle((x, y - high / 2), wide, high, facecolor=colour, lw=0, zorder=4))

    def embedding(x: float, y: float) -> None:
        block(x, y, 0.26, 0.3, EMBEDDING)

    def layer_norms(x: float, y: float, colour: str) -> None:
        block(x, y, 0.26, 0.1, colour)

    def matrices(x: float, y: float, colour: str, half: int) -> None:
        block(x + 0.13 * half, y, 0.13, 0.3, colour)
        outline = {"fill": False, "edgecolor": colour, "lw": 1, "zorder": 5}
        axes.add_patch(Rectangle((x, y - 0.15), 0.26, 0.3, **outline))

    for rank in range(8):
        held = digits_of(rank, sizes)
        x, y = STAGE * held["pp"] + RIGHT * held["tp"], DOWN * held["dp"]
        box = (x - WIDE / 2, y - HIGH / 2), WIDE, HIGH
        axes.add_patch(Rectangle(*box, facecolor="#eeeeee", edgecolor="#888888", lw=0.8, zorder=2))
        axes.text(x, y - 0.2, f"rank {rank}", ha="center", va="center", fontsize=TEXT)
        embedding(x - 0.46, y + 0.2)
        layer_norms(x - 0.13, y + 0.2, LAYERS[held["pp"]])
        matrices(x + 0.2, y + 0.2, LAYERS[held["pp"]], held["tp"])
        if held["tp"] == 0:
            arrow(CUTS["tp"][2], (x + WIDE / 2, y), (x + RIGHT - WIDE / 2, y))
        if held["dp"] == 0:
            arrow(CUTS["dp"][2], (x, y + HIGH / 2), (x, y + DOWN - HIGH / 2))
            text = f"tp {held['tp']}:\n{CUTS['tp'][1][held['tp']]} half of\nthe matrices"
            axes.text(x, -1.05, text, ha="center", color=CUTS["tp"][2], fontsize=TEXT)
        if held["pp"] == 0:  # above the upper ranks, below the lower ones
            end = y - HIGH / 2 if held["dp"] == 0 else y + HIGH / 2
            arrow(CUTS["pp"][2], (x, end), (x + STAGE, end), 0.17 if held["dp"] else -0.17)
        halves = (f"{CUTS[axis][1][digit]} half of {CUTS[axis][0]}" for axis, digit in held.items())
        told.append(f"rank {rank}: the whole embedding, whole LayerNorms, " + ", ".join(halves))
    for stage, half in enumerate(CUTS["pp"][1]):
        frame = (STAGE * stage - EDGE, -1.85), RIGHT + 2 * EDGE, DOWN + 2.95
        axes.add_patch(Rectangle(*frame, fill=False, edgecolor=CUTS["pp"][2], lw=1.4))
        text = f"pp {stage}: {half} half of the layers,\nand the tied embedding"
        axes.text(STAGE * stage + RIGHT / 2, -1.98, text, ha="center", color=CUTS["pp"][2], fontsize=TITLE)
    for row, half in enumerate(CUTS["dp"][1]):
        text = f"dp {row}:\n{half} half\nof the batch"
        axes.text(-EDGE - 0.15, DOWN * row, text, ha="right", va="center", color=CUTS["dp"][2], fontsize=TEXT)
    arrow(EMBEDDING, (ENDS[0], DOWN / 2), (ENDS[1], DOWN / 2))
    for axis, (x, y, across, up, text) in ARROWS.items():
        axes.text(x, y, text, ha=across, va=up, color=CUTS[axis][2], fontsize=TEXT)
    axes.text(GAP, -0.15, "← their\ngradients", ha="center", va="top", color=CUTS["pp"][2], fontsize=TEXT)
    axes.text(GAP, DOWN / 2 - 0.1, "sum of the", ha="center", va="bottom", color=EMBEDDING, fontsize=TEXT)
    text = "embedding's\ngradients,\nsame pairs"
    axes.text(GAP, DOWN / 2 + 0.1, text, ha="center", va="top", color=EMBEDDING, fontsize=TEXT)
    foot = DOWN + 1.5
    embedding(-1.9, foot)
    for stage, colour in enumerate(LAYERS):
        layer_norms(1.1 + 0.32 * stage, foot, colour)
        matrices(4.7 + 0.32 * stage, foot, colour, 0)
    for x, text in (
        (-1.54, "whole embedding"),
        (1.78, "its layers' LayerNorms"),
        (5.38, "half of their matrices"),
    ):
        axes.text(x, foot, text, va="center", fontsize=TEXT)
    axes.set(xlim=(-2.25, STAGE + RIGHT + EDGE + 0.05), ylim=(foot + 0.25, -2.7))
    axes.axis("off")
    told.append(
        "tp adds up activations, dp the weights' gradients; pp sends activations and their gradients "
        "between ranks 0 and 4, 1 and 5, 2 and 6, 3 and 7, and both stages add up the embedding's gradients"
    )
    return render(figure, "; ".join(told) + ".")
