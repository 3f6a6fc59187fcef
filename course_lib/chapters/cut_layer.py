"""Chapter 09's picture of a cut GPT: what every rank has in full, what is cut, and which sums lie between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.chapters.cut_matrices import OF_RANK, WHOLE
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, SUM = "#555555", "#cc6a26"
ROUND, NORM, BORDER, CUT = 0.15, -0.62, -1.25, -1.88  # a sign's radius; heights below the residual, in inches
ACROSS = 0.86  # from where a branch leaves the residual to where it comes back
STARTS = {"attention": 1.85, "MLP": 3.5, "head": 5.15}  # where each branch leaves


def plot_cut_layer(f: bool = False) -> Picture:
    """The residual on top, whole on every rank, and below a border the matrices, of which each rank has a part.

    Args:
        f: where a branch crosses the border downwards, it passes f. Without it, nothing stands there.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    axis = figure.subplots()
    axis.set_axis_off()
    axis.set_aspect("equal")
    axis.set(xticks=[], yticks=[], xlim=(0, 6.5), ylim=(-2.12, 0.62))
    axis.plot((0, 6.5), (BORDER, BORDER), color=INK, linewidth=0.8, linestyle=(0, (4, 4)), zorder=0)
    axis.plot((0.65, STARTS["head"]), (0, 0), color=INK, linewidth=2.5, zorder=1)
    axis.text(1.25, 0.1, "residual", ha="center", va="bottom", fontsize=TEXT)
    _line(axis, (0.65, 0.65), (CUT, 0))
    _cut(axis, 0.65, 1.0, "embedding")
    _sign(axis, 0.65, BORDER, "g")
    for name, x in STARTS.items():
        back = x + ACROSS
        _line(axis, (x, x, back, back), (0, CUT, CUT, 0))
        _box(axis, x, NORM, 0.84, 0.32, WHOLE, "LayerNorm")
        _cut(axis, (x + back) / 2, 1.2, name)
        if f:
            _sign(axis, x, BORDER, "f")
        _sign(axis, back, BORDER, "g")
        if name == "head":
            _box(axis, back, 0, 0.5, 0.32, WHOLE, "loss")
        else:
            _sign(axis, back, 0, "+", colour=INK)
    left, right = STARTS["attention"] - 0.3, STARTS["MLP"] + ACROSS + 0.25
    axis.plot([left, left, right, right], [0.28, 0.36, 0.36, 0.28], color=INK, linewidth=1)
    axis.text((left + right) / 2, 0.42, "one layer of many", ha="center", va="bottom", fontsize=TEXT)
    handles = [Patch(facecolor=WHOLE, edgecolor=INK, linewidth=0.8, label="whole on every rank")]
    handles += [
        Patch(facecolor=colour, edgecolor=INK, linewidth=0.8, label=f"part of rank {r}")
        for r, colour in enumerate(OF_RANK)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=TEXT, frameon=False)
    return render(
        figure,
        "A cut GPT. Whole on every rank: the residual, with its additions, the LayerNorms, and the loss. Cut: the "
        "embedding, attention, the MLP and the head. Each of these four passes g on its way up to the residual or to "
        f"the loss{'; attention, the MLP and the head pass f on the way down, behind a LayerNorm' if f else ''}.",
    )


def _line(axis: Axes, xs: tuple[float, ...], ys: tuple[float, ...]) -> None:
    axis.plot(xs, ys, color=INK, linewidth=1, zorder=1)


def _box(axis: Axes, x: float, y: float, width: float, height: float, colour: str, text: str) -> None:
    from matplotlib.patches import Rectangle

    left, low = x - width / 2, y - height / 2
    axis.add_patch(
        Rectangle((left, low), width, height, facecolor=colour, edgecolor=INK, linewidth=0.8, zorder=2)
    )
    axis.text(x, y - 0.01, text, ha="center", va="center", fontsize=TEXT, zorder=4)


def _cut(axis: Axes, x: float, width: float, text: str) -> None:
    """A box of two colours, one beside the other."""
    from matplotlib.patches import Rectangle

    for left, colour in zip((x - width / 2, x), OF_RANK, strict=True):
        axis.add_patch(Rectangle((left, CUT - 0.18), width / 2, 0.36, facecolor=colour, zorder=2))
    _box(axis, x, CUT, width, 0.36, "none", text)


def _sign(axis: Axes, x: float, y: float, sign: str, colour: str = SUM) -> None:
    from matplotlib.patches import Circle

    axis.add_patch(Circle((x, y), ROUND, facecolor="white", edgecolor=colour, linewidth=1.6, zorder=3))
    style = "normal" if sign == "+" else "italic"
    axis.text(x, y - 0.01, sign, ha="center", va="center", fontsize=TITLE, style=style, zorder=4)
