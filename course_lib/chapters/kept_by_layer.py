"""A layer of BERT as boxes, each with what it keeps for backward when some of its Linears are frozen (chapter 01)."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection

from torch import Tensor, nn

from course_lib.chapters.frozen import Refused
from course_lib.observe.ledgers.saved import saved_tensors
from course_lib.observe.networks.render import PALETTE, PLAIN
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

WIDE, APART = 1.06, 1.24
LINEARS = {name: f"attention.self.{name}" for name in ("query", "key", "value")}
LINEARS |= {name: name for name in ("attention.output.dense", "intermediate.dense", "output.dense")}
# name -> the module that keeps (of gelu the one that calls it), the column, the height, and half of the box's own
BOXES = {name: (LINEARS[name], 0, y, 0.3) for name, y in (("query", 0.7), ("key", 0), ("value", -0.7))} | {
    "core": ("attention.self.core", 1, 0, 0.4),
    "attention.output.dense": ("attention.output.dense", 2, 0, 0.4),
    "+": ("", 3, 0, 0.4),
    "LayerNorm": ("attention.output.LayerNorm", 4, 0, 0.4),
    "intermediate.dense": ("intermediate.dense", 0, -2.1, 0.4),
    "gelu": ("intermediate", 1, -2.1, 0.4),
    "output.dense": ("output.dense", 2, -2.1, 0.4),
    "+ ": ("", 3, -2.1, 0.4),
    "LayerNorm ": ("output.LayerNorm", 4, -2.1, 0.4),
}
LINES = {
    "attention.output.dense": ("attention.", "output.dense"),
    "intermediate.dense": ("intermediate", ".dense"),
}
CORE = "core"  # into it go three arrows
KEEPS = {"keeps its input": PALETTE[1], "keeps its inputs and its result": PALETTE[2]}


def kept_by_boxes(layer: nn.Module, x: Tensor, frozen: Collection[str] = ()) -> dict[str, int]:
    """Box -> the bytes of the tensors that it keeps first; statistics, as of a norm, are left out.

    Raises:
        Refused: a name is none of the layer's Linears.
    """
    if wrong := [name for name in frozen if name not in LINEARS]:
        raise Refused(f"{wrong[0]!r} is none of the Linears; these are: {', '.join(LINEARS)}")
    layer = copy.deepcopy(layer)
    for name in frozen:
        layer.get_submodule(LINEARS[name]).requires_grad_(False)
    kept = Counter[str]()
    for tensor in saved_tensors(layer, x):
        kept[tensor.saved_in] += tensor.bytes * (tensor.bytes >= x.nbytes)
    return {name: kept[module] for name, (module, *_) in BOXES.items()}


def plot_layer(layer: nn.Module, x: Tensor, frozen: Collection[str] = (), layers: int = 12) -> Picture:
    """Two rows of boxes, attention and the MLP; what keeps something is coloured, in bytes of ``layers`` layers."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, Rectangle

    kept = {name: layers * size for name, size in kept_by_boxes(layer, x, frozen).items()}
    freed = layers * sum(kept_by_boxes(layer, x).values()) - sum(kept.values())
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axis = figure.subplots()
    arrow = {"arrowstyle": "-|>", "mutation_scale": 9, "color": "#333333", "shrinkA": 0, "shrinkB": 0}

    def to(begin: tuple[float, float], end: tuple[float, float]) -> None:
        axis.add_patch(FancyArrowPatch(begin, end, **arrow))

    said = []
    for name, (_, column, y, half) in BOXES.items():
        left, told = APART * column, _told(kept[name], name in frozen)
        fill = KEEPS[list(KEEPS)[name == CORE]] if kept[name] else PLAIN
        axis.add_patch(Rectangle((left, y - half), WIDE, 2 * half, facecolor=fill, edgecolor="#333333"))
        lines = [*LINES.get(name, (name.strip(),)), told]
        for place, line in enumerate(lines):
            at = y + 0.25 * ((len(lines) - 1) / 2 - place)
            style = {"fontsize": TEXT, "weight": "bold" if place < len(lines) - 1 else "normal"}
            axis.text(left + WIDE / 2, at, line, ha="center", va="center", **style)
        if column:
            for start in (0.7, 0, -0.7) if name == CORE else (y,):
                to((left - APART + WIDE, start), (left, y + start / 4 if name == CORE else y))
        said.append(f"{name.strip()} {told}")
    end = APART * 4 + WIDE
    for y, top in ((0, 1.2), (-2.1, -1.45)):
        plus = APART * 3 + WIDE / 2
        axis.plot([-0.2, -0.2, plus], [y, top, top], color="#333333", lw=1)
        to((plus, top), (plus, y + 0.4))
        axis.plot([-0.4, -0.2], [y, y], color="#333333", lw=1)
        to((end, y), (end + 0.2, y))
    for y in (0.7, 0, -0.7):
        to((-0.2, 0), (0, y))
    to((-0.2, -2.1), (0, -2.1))
    title = (
        f"frozen: {len(set(frozen))} of {len(LINEARS)} Linears; frees {_mb(freed)}"
        if frozen
        else f"BERT-base: {layers} layers like this one"
    )
    axis.text(-0.4, 1.55, title, fontsize=TITLE, va="center")
    for left, (text, fill) in zip((2.5, 3.95), KEEPS.items(), strict=True):
        axis.add_patch(Rectangle((left, 1.45), 0.2, 0.2, facecolor=fill, edgecolor="#333333"))
        axis.text(left + 0.26, 1.55, text, fontsize=TEXT, va="center")
    axis.set(xlim=(-0.42, end + 0.22), ylim=(-2.55, 1.7))
    axis.set_axis_off()
    return render(figure, f"{title}. What boxes keep: {', '.join(said)}.")


def _told(size: int, frozen: bool) -> str:
    return "frozen" if frozen else _mb(size) if size else "–"


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
