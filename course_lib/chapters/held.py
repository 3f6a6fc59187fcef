"""Chapter 12's picture of 8 ranks: what each holds, and between which of them a bug acts."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.chapters.three_dimensions import digits_of
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

# axis -> what it divides, the names of its halves, and the colour of its arrows
CUTS = {
    "tp": ("each matrix", ("left", "right"), "#cc6a24"),
    "dp": ("the batch", ("first", "second"), "#4a86ba"),
    "pp": ("the layers", ("first", "last"), "#23614a"),
}
WIDE, HIGH, RIGHT, DOWN, STAGE = (
    1.5,
    1.0,
    2.5,
    1.7,
    6.0,
)  # of a rank; from one to the next, and to the next stage
TIED = 3.0  # where the embedding stands, below the ranks


def plot_held(sizes: Mapping[str, int]) -> Picture:
    """Two stages of 2 x 2 ranks, arrows between those that form a group, and the numbers of the chapter's four bugs.

    Raises:
        ValueError: an axis is not cut in two.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    if dict(sizes) != dict.fromkeys(CUTS, 2):
        raise ValueError(f"only halves are drawn, so tp, dp and pp must be 2, not {dict(sizes)}")
    figure = Figure(figsize=(WIDTH, 4.3), layout="constrained")
    axes, told = figure.subplots(), []

    def box(x: float, y: float, wide: float, high: float, text: str) -> None:
        corner = x - wide / 2, y - high / 2
        axes.add_patch(Rectangle(corner, wide, high, facecolor="#eeeeee", edgecolor="#888888", lw=0.8))
        axes.text(x, y, text, ha="center", va="center", fontsize=TEXT)

    def arrow(axis: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        style = {"arrowstyle": "<->", "color": CUTS[axis][2], "lw": 2, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", end, start, arrowprops=style)

    def bug(number: int, x: float, y: float) -> None:
        paper = {"boxstyle": "circle,pad=0.18", "facecolor": "#c0104a", "edgecolor": "white"}
        given = {"ha": "center", "va": "center", "color": "white", "fontweight": "bold", "bbox": paper}
        axes.text(x, y, str(number), fontsize=TEXT, **given)

    for rank in range(8):
        held = digits_of(rank, sizes)
        x, y = STAGE * held["pp"] + RIGHT * held["tp"], DOWN * held["dp"]
        box(x, y, WIDE, HIGH, f"rank {rank}")
        bug(2, x + WIDE / 2, y + HIGH / 2)
        if held["tp"] == 0:
            arrow("tp", (x + WIDE / 2, y), (x + RIGHT - WIDE / 2, y))
            bug(4, x + RIGHT / 2, y)
        if held["dp"] == 0:
            arrow("dp", (x, y + HIGH / 2), (x, y + DOWN - HIGH / 2))
            bug(3, x, y + DOWN / 2)
            text = f"tp {held['tp']}: {CUTS['tp'][1][held['tp']]} half\nof each matrix"
            axes.text(x, -0.7, text, ha="center", color=CUTS["tp"][2], fontsize=TEXT)
        halves = (f"{CUTS[axis][1][digit]} half of {CUTS[axis][0]}" for axis, digit in held.items())
        told.append(f"rank {rank}: " + ", ".join(halves))
    for stage, half in enumerate(CUTS["pp"][1]):
        middle = STAGE * stage + RIGHT / 2
        frame = (middle - 2.3, -1.35), 4.6, 4.9
        axes.add_patch(Rectangle(*frame, fill=False, edgecolor=CUTS["pp"][2], lw=1.4))
        axes.text(middle, -1.5, f"pp {stage}: {half} half of the layers", ha="center", fontsize=TITLE)
        box(middle, TIED, 3.8, 0.6, "each rank: tied embedding")
    arrow("pp", (RIGHT / 2 + 2.3, DOWN / 2), (STAGE + RIGHT / 2 - 2.3, DOWN / 2))
    arrow("pp", (RIGHT / 2 + 1.9, TIED), (STAGE + RIGHT / 2 - 1.9, TIED))
    bug(1, STAGE / 2 + RIGHT / 2, TIED)
    for row, half in enumerate(CUTS["dp"][1]):
        text = f"dp {row}: {half} half\nof the batch"
        axes.text(-1.25, DOWN * row, text, ha="right", va="center", color=CUTS["dp"][2], fontsize=TEXT)
    axes.set(xlim=(-3.6, STAGE + RIGHT + 1.2), ylim=(3.65, -2.0))
    axes.axis("off")
    where = ("the embeddings of both stages", "each rank", "ranks along dp", "ranks along tp")
    marks = "; ".join(f"bug {number} acts at {place}" for number, place in enumerate(where, 1))
    return render(figure, "; ".join(told) + f"; {marks}.")
