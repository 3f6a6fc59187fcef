"""The drawing of an MLP whose first matrix is cut by columns and whose second is cut by rows, on two ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHOLE = "#e4e4e4"  # what every rank has
OF_RANK = ("#a9cbe8", "#f3c09a")
TOKENS, HIDDEN, WIDE = 0.8, 0.72, 1.5  # how large the three sizes are drawn
SIGN = 0.34  # room for a sign between two matrices


def plot_cut_mlp() -> Picture:
    """Y = X A and Z = GeLU(Y) B: X is whole, A is cut by columns, B by rows, and Z is the sum of two parts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    first, second = figure.subplots(2, 1, height_ratios=[TOKENS + 0.5, WIDE + 0.5])
    row = _Row(first, "A is cut by columns, so each rank computes its own columns of Y")
    row.matrix(HIDDEN, TOKENS, ["X"])
    row.sign("×")
    row.matrix(WIDE, HIDDEN, ["A₀", "A₁"])
    row.sign("=")
    row.matrix(WIDE, TOKENS, ["Y₀", "Y₁"])
    row.note("GeLU on each\nnumber by itself")
    row = _Row(second, "B is cut by rows, so each rank computes a part of a sum")
    row.matrix(WIDE, TOKENS, ["GeLU(Y₀)", "GeLU(Y₁)"])
    row.sign("×")
    row.matrix(HIDDEN, WIDE, ["B₀", "B₁"], upright=True)
    row.sign("=")
    row.matrix(HIDDEN, TOKENS, ["Z₀"], [OF_RANK[0]])
    row.sign("+")
    row.matrix(HIDDEN, TOKENS, ["Z₁"], [OF_RANK[1]])
    row.sign("=")
    row.matrix(HIDDEN, TOKENS, ["Z"])
    row.note("the sum is\none all-reduce")
    handles = [_patch(colour) for colour in (WHOLE, *OF_RANK)]
    names = ["on every rank", "on rank 0 only", "on rank 1 only"]
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=TEXT, frameon=False)
    return render(
        figure,
        "Two products on two ranks. X, which every rank has, times A, whose left columns are on rank 0 and whose right "
        "columns are on rank 1, gives Y, cut in the same way. GeLU(Y) times B, whose upper rows are on rank 0 and "
        "whose lower rows are on rank 1, gives a part of the sum Z on each rank; after the sum every rank has Z.",
    )


def _patch(colour: str):
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, edgecolor="#555555", linewidth=0.8)


class _Row:
    """One product, drawn from left to right; every matrix is centred on one line."""

    def __init__(self, axis: Axes, title: str) -> None:
        self.axis, self.x = axis, 0.0
        axis.set_title(title, loc="left", fontsize=TITLE)
        axis.set_aspect("equal")
        axis.set_axis_off()
        axis.set(xticks=[], yticks=[])
        axis.set_xlim(-0.02, 6.75)

    def matrix(
        self,
        width: float,
        height: float,
        names: list[str],
        colours: list[str] | None = None,
        upright: bool = False,
    ) -> None:
        """One matrix; several names are its parts, side by side, or (``upright``) one below the other."""
        from matplotlib.patches import Rectangle

        count = len(names)
        colours = colours or ([WHOLE] if count == 1 else list(OF_RANK))
        w, h = (width, height / count) if upright else (width / count, height)
        for i, (name, colour) in enumerate(zip(names, colours, strict=True)):
            x, y = (self.x, height / 2 - (i + 1) * h) if upright else (self.x + i * w, -height / 2)
            self.axis.add_patch(Rectangle((x, y), w, h, facecolor=colour, edgecolor="#555555", linewidth=0.8))
            self.axis.text(x + w / 2, y + h / 2, name, ha="center", va="center", fontsize=TITLE)
        self.x += width
        low, high = self.axis.get_ylim() if self.axis.patches[:-count] else (0, 0)
        self.axis.set_ylim(min(low, -height / 2 - 0.02), max(high, height / 2 + 0.02))

    def sign(self, sign: str) -> None:
        self.axis.text(self.x + SIGN / 2, 0, sign, ha="center", va="center", fontsize=TITLE)
        self.x += SIGN

    def note(self, text: str) -> None:
        self.axis.text(self.x + 0.15, 0, text, ha="left", va="center", fontsize=TEXT)
