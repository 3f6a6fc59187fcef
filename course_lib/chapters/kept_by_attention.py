"""Attention in three steps and as a single call, drawn with what each keeps for backward (chapter 01)."""

from __future__ import annotations

from torch import Tensor, nn

from course_lib.observe.ledgers.saved import saved_tensors
from course_lib.observe.networks.render import PALETTE
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

INPUT, RESULT = PALETTE[1], PALETTE[2]
WIDE, APART, BELOW = 1.5, 2.4, -1.6


def kept_by(attention: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> tuple[list[int], int]:
    """The bytes of each input that is kept, in the order of saving, and those of results; statistics left out."""
    saved = [t for t in saved_tensors(attention, q, k, v) if t.bytes >= q.nbytes]
    inputs = [t.bytes for t in saved if t.producer == "input"]
    return inputs, sum(t.bytes for t in saved) - sum(inputs)


def plot_attention(steps: nn.Module, call: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Picture:
    """Two rows: the boxes of ``steps`` (product, softmax, product), and ``call`` as one box."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, Rectangle

    (*two, last), table = kept_by(steps, q, k, v)
    inputs, result = kept_by(call, q, k, v)
    figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
    axis = figure.subplots()

    def box(left: float, low: float, wide: float, colour: str, *lines: str) -> None:
        axis.add_patch(Rectangle((left, low - 0.4), wide, 0.8, facecolor=colour, edgecolor="#333333"))
        for place, line in enumerate(lines):
            style = {
                "ha": "center",
                "va": "center",
                "fontsize": TEXT,
                "weight": "normal" if place else "bold",
            }
            axis.text(left + wide / 2, low + 0.18 - 0.36 * place, line, **style)

    rows = (
        ("q @ kᵀ / 8", INPUT, f"q, k: {_mb(sum(two))}"),
        ("softmax", RESULT, f"shares: {_mb(table)}"),
        ("@ v", INPUT, f"v: {_mb(last)}"),
    )
    arrow = {"arrowstyle": "-|>", "mutation_scale": 9, "color": "#333333", "shrinkA": 0, "shrinkB": 0}
    for i, (name, colour, told) in enumerate(rows):
        box(APART * i, 0, WIDE, colour, name, told)
        if i:
            axis.add_patch(FancyArrowPatch((APART * (i - 1) + WIDE, 0), (APART * i, 0), **arrow))
    for i, name in ((1, "scores"), (2, "shares")):
        axis.text(APART * i - (APART - WIDE) / 2, 0.1, name, ha="center", va="bottom", fontsize=TEXT)
    whole = APART * (len(rows) - 1) + WIDE
    part = whole * sum(inputs) / (sum(inputs) + result)
    box(0, BELOW, part, INPUT, "q, k, v", _mb(sum(inputs)))
    box(part, BELOW, whole - part, RESULT, "its result", _mb(result))
    sums = {"in three steps": sum(two) + last + table, "as one call": sum(inputs) + result}
    for low, (name, size) in zip((0.62, BELOW + 0.62), sums.items(), strict=True):
        axis.text(0, low, f"{name}: keeps {_mb(size)}", fontsize=TITLE, va="center")
    patches = [
        Rectangle((0, 0), 1, 1, facecolor=colour, edgecolor="#333333", label=what)
        for colour, what in ((INPUT, "keeps its input"), (RESULT, "keeps its result"))
    ]
    axis.legend(
        handles=patches, loc="upper right", bbox_to_anchor=(1, 1.08), ncols=2, frameon=False, fontsize=TEXT
    )
    axis.set(xlim=(-0.05, whole + 0.05), ylim=(BELOW - 0.45, 0.85))
    axis.set_axis_off()
    boxes = ", ".join(f"{name} {told}" for name, _, told in rows)
    one = f"q, k, v {_mb(sum(inputs))}, its result {_mb(result)}"
    first, second = (f"{name}: keeps {_mb(size)}" for name, size in sums.items())
    return render(figure, f"Attention {first} ({boxes}); {second} ({one}).")


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
