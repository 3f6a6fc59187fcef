"""Backward's way, drawn on the boxes of ResNet-18 with what each keeps, for lists of frozen boxes (chapter 01)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from course_lib.chapters.frozen import LEAST, Held, held
from course_lib.observe.networks.render import PALETTE, PLAIN
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

PASSED, ARROW = PALETTE[1], "#aa2222"
HIGH, WIDE = 2.7, 0.94  # from row to row, and of a box, where boxes stand 1 apart


def plot_way(model: nn.Module, lists: Mapping[str, Collection[str]]) -> Picture:
    """For each list of frozen boxes a row with all boxes in the order of forward; an arrow goes as far as backward.
    In a box stand its parameters, and what it keeps.

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
    figure = Figure(figsize=(WIDTH, 0.2 + 1.75 * len(runs)), layout="constrained")
    axis = figure.subplots()
    said = []
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
            told = _mb(step.activations.get(name, 0)) if i >= first else "–"
            fill = PASSED if i >= first else PLAIN
            axis.add_patch(Rectangle((i, low - 0.9), WIDE, 1.8, facecolor=fill, edgecolor="#333333"))
            for line, text in enumerate((name, f"{sizes[name]:,}" if sizes[name] else "", state, told)):
                style = {"fontsize": TEXT, "weight": "normal" if line else "bold"}
                axis.text(i + WIDE / 2, low + 0.6 - 0.4 * line, text, ha="center", va="center", **style)
        kept = ", ".join(f"{name} {_mb(step.activations.get(name, 0))}" for name in boxes[first:])
        said.append(f"{_title(run, step)}. Backward goes to {boxes[first]}; kept: {kept}")
    axis.set(xlim=(-0.05, len(boxes)), ylim=(-HIGH * (len(runs) - 1) - 1, 1.85))
    axis.set_axis_off()
    return render(figure, f"Backward's way. {'; '.join(said)}.")


def _title(run: str, step: Held) -> str:
    few = ": too few" if step.trained < LEAST else ""
    states, kept = (sum(part.values()) / 1e6 for part in (step.states, step.activations))
    both = f"{states:.0f} states + {kept:.0f} activations = {step.total / 1e6:.0f} MB"
    return f"{run}: {both}; trains {100 * step.trained:.0f} %{few}"


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 5e5 else f"{size / 1e6:.1f} MB"
