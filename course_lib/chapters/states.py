"""A state machine: its states as boxes, and what leads from one to another as arrows with words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from simulator.inputs.checks import finite
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH


class Arrow(NamedTuple):
    """From one state to another, bent to its left (``bend`` above 0) or right; ``words`` stand at ``place``."""

    source: str
    target: str
    words: str
    place: tuple[float, float]
    bend: float = 0.0


def plot_states(
    states: Mapping[str, tuple[float, float]],
    arrows: Sequence[Arrow],
    height: float = 2.6,
    alt: str | None = None,
) -> Picture:
    """Draw boxes at places between 0 and 1 (from the left, from below), and the arrows.

    Args:
        states: name -> the middle of its box.
        height: of the picture, inches.
        alt: the sentence that says what is seen; by default every arrow.

    Raises:
        ValueError: there is no state, or an arrow leads to or from one that is not there.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    if not states:
        raise ValueError("there is nothing to draw: give at least one state")
    for x, y in [*states.values(), *(arrow.place for arrow in arrows)]:
        finite(place=x)
        finite(place=y)
    for arrow in arrows:
        for name in (arrow.source, arrow.target):
            if name not in states:
                raise ValueError(f"an arrow names the state {name!r}; choose one of {', '.join(states)}")
    figure = Figure(figsize=(WIDTH, height))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
    axis.axis("off")
    half = (0.085, 0.17 / height * 1.3)
    boxes = {}
    for name, (x, y) in states.items():
        boxes[name] = FancyBboxPatch(
            (x - half[0], y - half[1]), 2 * half[0], 2 * half[1], boxstyle="round,pad=0,rounding_size=0.02",
            facecolor="#e3eef8", edgecolor="#143f70", linewidth=1.4,
        )  # fmt: skip
        axis.add_patch(boxes[name])
        axis.text(x, y, name, ha="center", va="center", fontsize=TITLE)
    for arrow in arrows:
        axis.add_patch(
            FancyArrowPatch(
                states[arrow.source], states[arrow.target], arrowstyle="-|>", mutation_scale=12, color="#444444",
                patchA=boxes[arrow.source], patchB=boxes[arrow.target], shrinkA=2, shrinkB=2,
                connectionstyle=f"arc3,rad={-arrow.bend}",
            )
        )  # fmt: skip
        axis.text(*arrow.place, arrow.words, ha="center", va="center", fontsize=TEXT)
    said = "; ".join(f"from {a.source} to {a.target}: {' '.join(a.words.split())}" for a in arrows)
    return render(figure, alt or f"States {', '.join(states)}. {said}.")
