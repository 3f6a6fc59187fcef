"""Chapter 12's picture of 8 ranks: what each holds and sends, and where the four bugs sit."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.chapters.caught import BUGS
from course_lib.chapters.three_dimensions import digits_of
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

# axis -> what it divides, the names of its halves, and the colour of its arrows
CUTS = {
    "tp": ("the layers' matrices", ("one", "other"), "#cc6a24"),
    "dp": ("the batch", ("first", "second"), "#4a86ba"),
    "pp": ("the layers", ("first", "last"), "#23614a"),
}
WIDE, HIGH = 1.6, 0.9  # of a rank
RIGHT, LOWER = 2.7, 0.85  # from a rank to the next along tp
DOWN, STAGE = 2.1, 7.4  # along dp, and along pp
EMBEDDING, LAYERS = (
    "#222222",
    ("#b98b4e", "#c06c84"),
)  # the colours of the embedding, and of each stage's layers
# A place of each bug: between the stages, on a rank, between the dp ranks of the last stage, at half a matrix
BETWEEN, SIDE = (STAGE + RIGHT) / 2, RIGHT + WIDE / 2
PLACES = ((BETWEEN, DOWN), (SIDE, LOWER - HIGH / 2), (STAGE, DOWN / 2), (SIDE, DOWN + LOWER + HIGH / 2))


def plot_held(sizes: Mapping[str, int]) -> Picture:
    """Two stages of 2 x 2 ranks, arrows between those that form a group, and a numbered dot for each bug.

    Raises:
        ValueError: an axis is not cut in two.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    if dict(sizes) != dict.fromkeys(CUTS, 2):
        raise ValueError(f"only halves are drawn, so tp, dp and pp must be 2, not {dict(sizes)}")
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    axes, told = figure.subplots(), []

    def arrow(axis: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        style = {"arrowstyle": "<->", "color": CUTS[axis][2], "lw": 2, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", end, start, arrowprops=style, zorder=1 if axis == "pp" else 3)

    def block(x: float, y: float, wide: float, high: float, colour: str) -> None:
        axes.add_patch(Rectangle((x, y - high / 2), wide, high, facecolor=colour, lw=0, zorder=4))

    def embedding(x: float, y: float) -> None:
        block(x, y, 0.4, 0.3, EMBEDDING)

    def layer_norms(x: float, y: float, colour: str) -> None:
        block(x, y, 0.4, 0.1, colour)

    def matrices(x: float, y: float, colour: str, half: int) -> None:
        block(x + 0.2 * half, y, 0.2, 0.3, colour)
        outline = {"fill": False, "edgecolor": colour, "lw": 1, "zorder": 5}
        axes.add_patch(Rectangle((x, y - 0.15), 0.4, 0.3, **outline))

    for rank in range(8):
        held = digits_of(rank, sizes)
        x, y = STAGE * held["pp"] + RIGHT * held["tp"], DOWN * held["dp"] + LOWER * held["tp"]
        corner = x - WIDE / 2, y - HIGH / 2
        axes.add_patch(
            Rectangle(corner, WIDE, HIGH, facecolor="#eeeeee", edgecolor="#888888", lw=0.8, zorder=2)
        )
        axes.text(x, y - 0.2, f"rank {rank}", ha="center", va="center", fontsize=TEXT)
        embedding(x - 0.7, y + 0.2)
        layer_norms(x - 0.2, y + 0.2, LAYERS[held["pp"]])
        matrices(x + 0.3, y + 0.2, LAYERS[held["pp"]], held["tp"])
        if held["tp"] == 0:
            step = RIGHT - WIDE, LOWER * (RIGHT - WIDE) / RIGHT
            near = x + WIDE / 2, y + LOWER / 2 - step[1] / 2
            arrow("tp", near, (near[0] + step[0], near[1] + step[1]))
        if held["dp"] == 0:
            arrow("dp", (x, y + HIGH / 2), (x, y + DOWN - HIGH / 2))
            text = f"tp {held['tp']}: {CUTS['tp'][1][held['tp']]} half\nof the matrices"
            axes.text(x, -0.75, text, ha="center", color=CUTS["tp"][2], fontsize=TEXT)
        if held["pp"] == 0:
            arrow("pp", (x + WIDE / 2, y), (x + STAGE - WIDE / 2, y))
        halves = (f"{CUTS[axis][1][digit]} half of {CUTS[axis][0]}" for axis, digit in held.items())
        told.append(f"rank {rank}: the whole embedding, whole LayerNorms, " + ", ".join(halves))
    for stage, half in enumerate(CUTS["pp"][1]):
        middle = STAGE * stage + RIGHT / 2
        frame = (middle - 2.65, -1.5), 5.3, DOWN + LOWER + 2.2
        axes.add_patch(Rectangle(*frame, fill=False, edgecolor=CUTS["pp"][2], lw=1.4))
        text = f"pp {stage}: {half} half of the layers,\nand the tied embedding"
        axes.text(middle, -1.65, text, ha="center", color=CUTS["pp"][2], fontsize=TITLE)
    for row, half in enumerate(CUTS["dp"][1]):
        text = f"dp {row}: {half} half\nof the batch"
        axes.text(-1.45, DOWN * row, text, ha="right", va="center", color=CUTS["dp"][2], fontsize=TEXT)
    foot = DOWN + LOWER + 1.15
    embedding(-3.4, foot)
    for stage, colour in enumerate(LAYERS):
        layer_norms(1.6 + 0.5 * stage, foot, colour)
        matrices(6.6 + 0.5 * stage, foot, colour, 0)
    for x, text in (
        (-3.4, "whole embedding"),
        (2.1, "its layers' LayerNorms"),
        (7.1, "half of their matrices"),
    ):
        axes.text(x + 0.6, foot, text, va="center", fontsize=TEXT)
    for axis, x, y, text, where in (
        ("tp", 1.5, 0.2, "activations", "left"),
        ("dp", 0.12, DOWN / 2, "gradients", "left"),
        ("pp", BETWEEN, -0.16, "activations →", "center"),
        ("pp", BETWEEN, 0.18, "← gradients", "center"),
    ):
        axes.text(x, y, text, ha=where, va="center", color=CUTS[axis][2], fontsize=TEXT)
    for number, ((x, y), (colour, *_)) in enumerate(zip(PLACES, BUGS, strict=False), 1):
        round_box = {"boxstyle": "circle,pad=0.2", "facecolor": "white", "edgecolor": colour, "linewidth": 2}
        axes.text(x, y, str(number), ha="center", va="center", fontsize=TEXT, bbox=round_box, zorder=6)
    axes.set(xlim=(-3.8, STAGE + RIGHT + 1.4), ylim=(foot + 0.3, -2.6))
    axes.axis("off")
    told.append(
        "bug 1 is between the stages, 2 on a rank, 3 between last stages along dp, 4 at half a matrix"
    )
    return render(figure, "; ".join(told) + ".")
