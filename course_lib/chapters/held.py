"""Chapter 12's picture of what each rank holds: the digits of its number, drawn."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.chapters.three_dimensions import digits_of
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

# axis -> what it divides, the names of its halves, and the colour of the half that a rank has
CUTS = {
    "tp": ("each matrix", ("left", "right"), "#cc6a24"),
    "dp": ("the batch", ("first", "second"), "#4a86ba"),
    "pp": ("the layers", ("first", "last"), "#23614a"),
}
# axis -> left, top, width and height of each half in a square of side 1; two stages have a gap between them
HALVES = {
    "tp": ((0, 0, 0.5, 1), (0.5, 0, 0.5, 1)),
    "dp": ((0, 0, 1, 0.5), (0, 0.5, 1, 0.5)),
    "pp": ((0, 0, 1, 0.38), (0, 0.62, 1, 0.38)),
}
EMPTY, SIDE = "#eeeeee", 0.52


def plot_held(sizes: Mapping[str, int]) -> Picture:
    """A column for each of 8 ranks, a row for each axis: which half is the rank's, and the digit that says so.

    Raises:
        ValueError: an axis is not cut in two.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    if dict(sizes) != dict.fromkeys(CUTS, 2):
        raise ValueError(f"only halves are drawn, so tp, dp and pp must be 2, not {dict(sizes)}")
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axes, told = figure.subplots(), []
    for rank in range(8):
        axes.text(rank, -0.62, f"rank {rank}", ha="center", fontsize=TITLE)
        held = digits_of(rank, sizes)
        for row, (axis, digit) in enumerate(held.items()):
            for half, (left, top, wide, high) in enumerate(HALVES[axis]):
                corner = rank + SIDE * (left - 0.5), row + SIDE * (top - 0.5)
                colour = CUTS[axis][2] if half == digit else EMPTY
                box = Rectangle(
                    corner, SIDE * wide, SIDE * high, facecolor=colour, edgecolor="#888888", lw=0.8
                )
                axes.add_patch(box)
            axes.text(rank, row + 0.4, f"{axis} {digit}", ha="center", va="center", fontsize=TEXT)
        halves = (f"{CUTS[axis][1][digit]} half of {CUTS[axis][0]}" for axis, digit in held.items())
        told.append(f"rank {rank}: " + ", ".join(halves))
    axes.set(xlim=(-0.5, 7.5), ylim=(2.6, -0.85))
    axes.set_yticks(range(3), [f"its half of\n{what}" for what, _, _ in CUTS.values()], fontsize=TEXT)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return render(figure, "; ".join(told) + ".")
