"""Backward's way, drawn on the boxes of ResNet-18 with what each keeps, for lists of frozen boxes (chapter 01)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from course_lib.chapters.frozen import LEAST, Held, held
from course_lib.observe.networks.render import PALETTE, PLAIN
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

PASSED, ARROW, HATCH = PALETTE[1], "#aa2222", "#ffffff88"
HIGH, WIDE = 2.95, 0.94  # from row to row, and of a box, where boxes stand 1 apart
LEGEND = {"keeps, and is trained": False, "keeps, although nothing in it is trained": True}  # text -> hatched


def plot_way(model: nn.Module, lists: Mapping[str, Collection[str]]) -> Picture:
    """For each list of frozen boxes a row with all boxes in the order of forward; an arrow goes as far as backward.
    In a box stand its parameters, and what it keeps. A box that keeps something untrained is hatched.

    Args:
        model: a chain of boxes; what keeps nothing in any step is left out.
        lists: the name of a run -> the boxes that it freezes.

    Raises:
        Refused: a name is none of the boxes with parameters, or nothing is left to train.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, Rectangle

    trained = held(model).activations
    boxes = [name for name, _ in model.named_children() if name in trained]
    sizes = {name: sum(p.numel() for p in model.get_submodule(name).parameters()) for name in boxes}
    runs = {name: held(model, frozen) for name, frozen in lists.items()}
    figure = Figure(figsize=(WIDTH, 0.4 + 1.9 * len(runs)), layout="constrained")
    axis = figure.subplots()
    said = []

    def box(left: float, low: float, wide: float, high: float, fill: str, hatched: bool) -> None:
        axis.add_patch(Rectangle((left, low), wide, high, facecolor=fill, edgecolor="#333333"))
        if hatched:
            lines = {"hatch": "//", "edgecolor": HATCH, "lw": 0}
            axis.add_patch(Rectangle((left, low), wide, high, facecolor="none", **lines))

    for row, (run, step) in enumerate(runs.items()):
        low, frozen = -HIGH * row, lists[run]
        first = next(i for i, name in enumerate(boxes) if name in step.states and name not in frozen)
        axis.text(0, low + 1.6, _title(run, step), fontsize=TITLE, va="center")
        right = len(boxes) - 1 + WIDE
        axis.text(right, low + 1.6, "backward", fontsize=TITLE, va="center", ha="right", color=ARROW)
        ends = (right, low + 1.2), (first, low + 1.2)
        shape = {"arrowstyle": "-|>", "mutation_scale": 14, "lw": 2, "shrinkA": 0, "shrinkB": 0}
        axis.add_patch(FancyArrowPatch(*ends, color=ARROW, **shape))
        for i, name in enumerate(boxes):
            state = "" if name not in step.states else "frozen" if name in frozen else "trained"
            size = step.activations.get(name, 0)
            told, fill = (_mb(size), PASSED) if size else ("–", PLAIN)
            box(i, low - 0.9, WIDE, 1.8, fill, hatched=size > 0 and state != "trained")
            for line, text in enumerate((name, f"{sizes[name]:,}" if sizes[name] else "", state, told)):
                style = {"fontsize": TEXT, "weight": "normal" if line else "bold"}
                axis.text(i + WIDE / 2, low + 0.6 - 0.4 * line, text, ha="center", va="center", **style)
        kept = ", ".join(f"{name} {_mb(step.activations.get(name, 0))}" for name in boxes[first:])
        said.append(f"{_title(run, step)}. Backward goes to {boxes[first]}; kept: {kept}")
    bottom = -HIGH * (len(runs) - 1) - 1.55
    for left, (text, hatched) in zip((0, 2.6), LEGEND.items(), strict=True):
        box(left, bottom, 0.3, 0.32, PASSED, hatched)
        axis.text(left + 0.4, bottom + 0.16, text, fontsize=TEXT, va="center")
    axis.text(right, bottom + 0.16, "MB are rounded", fontsize=TEXT, va="center", ha="right")
    axis.set(xlim=(-0.05, len(boxes)), ylim=(bottom - 0.05, 1.85))
    axis.set_axis_off()
    return render(figure, f"Backward's way. {'; '.join(said)}.")


def _title(run: str, step: Held) -> str:
    few = ": too few" if step.trained < LEAST else ""
    states, kept = (round(sum(part.values()) / 1e6, 1) for part in (step.states, step.activations))
    both = f"{states:.1f} states + {kept:.1f} activations = {states + kept:.1f} MB"  # the digits shown add up
    return f"{run}: {both}; trains {100 * step.trained:.0f} %{few}"


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 5e5 else f"{size / 1e6:.1f} MB"
