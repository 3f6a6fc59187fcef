"""The drawing of which unit is whole while which block computes (chapter 07)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, human, titles_for

LOOKS = {
    "its shard only": "#f0f0f0",
    "being gathered": "#e8c547",
    "whole": "#8a8a8a",
    "whole, computes forward": "#9cc9ee",
    "whole, computes backward": "#cc6a26",
}
STATES = {"shard": "its shard only", "coming": "being gathered", "whole": "whole"}


class Moment(NamedTuple):
    """The beginning of a block's computation on one rank.

    Args:
        name: ``"F0"`` or ``"B0"``: the forward or the backward of block 0.
        units: of each unit, the root first, ``"shard"``, ``"coming"`` or ``"whole"``.
        bytes: of parameters that the rank holds then.
    """

    name: str
    units: list[str]
    bytes: float


def plot_whole_units(*steps: Sequence[Moment], titles: Sequence[str] | None = None) -> Picture:
    """A row for each unit and a column for each computation, with the rank's bytes below it; steps one under another.

    Raises:
        ValueError: no step, or one without a moment.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    if not steps or not all(steps):
        raise ValueError("there is nothing to draw: give at least one step, each with at least one moment")
    titles = titles_for(titles, len(steps))
    rows = [len(step[0].units) for step in steps]
    figure = Figure(figsize=(WIDTH, 0.5 + sum(0.24 * n + 0.85 for n in rows)), layout="constrained")
    axes = figure.subplots(len(steps), 1, squeeze=False, height_ratios=[n + 2 for n in rows])[:, 0]
    drawn: set[str] = set()
    for axis, step, title in zip(axes, steps, titles, strict=True):
        names = ["root", *(f"block {i}" for i in range(len(step[0].units) - 1))]
        names = names if len(names) > 1 else ["whole model"]
        for column, moment in enumerate(step):
            for row, state in enumerate(moment.units):
                look = STATES[state]
                if len(moment.units) == 1 or row == int(moment.name[1:]) + 1:
                    look = f"whole, computes {'forward' if moment.name[0] == 'F' else 'backward'}"
                drawn.add(look)
                axis.barh(row, 0.94, left=column + 0.03, height=0.86, color=LOOKS[look])
        below = [f"{m.name}\n{human(m.bytes)}" for m in step]
        axis.set_xticks([i + 0.5 for i in range(len(step))], below, fontsize=TEXT)
        axis.set_yticks(range(len(names)), names, fontsize=TEXT)
        axis.set_title(title, loc="left", fontsize=TITLE)
        axis.set_xlim(0, len(step))
        axis.invert_yaxis()
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    handles = [Patch(color=colour, label=look) for look, colour in LOOKS.items() if look in drawn]
    figure.legend(handles=handles, loc="outside upper right", ncols=3, fontsize=TEXT, frameon=False)
    return render(figure, "; ".join(map(_sentence, steps, titles)) + ".")


def _sentence(step: Sequence[Moment], title: str) -> str:
    moments = (f"{m.name} with {sum(state != 'shard' for state in m.units)}" for m in step)
    peak = max(m.bytes for m in step)
    return (
        f"{title or 'One step'}: at most {human(peak)} of parameters; units that are not only a shard: "
        + ", ".join(moments)
    )
