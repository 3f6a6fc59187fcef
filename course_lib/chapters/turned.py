"""A query and a key that RoPE has turned: one of their pairs of numbers, in a plane."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.plots.picture import Picture, render
from simulator.plots.style import PARTS, TEXT, WIDTH

BEFORE = math.radians(-20)  # the angle of both before they are turned
COLOURS = {"query": PARTS[1], "key": PARTS[0]}


def plot_turned(places: Sequence[tuple[int, int]], fast: float = 1.0) -> Picture:
    """For each (place of the query, place of the key) a panel with both arrows and the angle between them.

    Before they are turned both point the same way. A spiral shows how far the query was turned.

    Args:
        places: at least one pair of places.
        fast: radians that this pair of numbers is turned at each place; 1 for the first pair.
    """
    from matplotlib.figure import Figure

    if not places:
        raise ValueError("there is nothing to draw: give at least one (place of the query, place of the key)")
    figure = Figure(figsize=(WIDTH, 0.9 + 0.7 * WIDTH / max(3, len(places))))
    figure.subplots_adjust(left=0, right=1, bottom=0.1, top=0.72, wspace=0)
    said = []
    for axis, at in zip(figure.subplots(1, len(places), squeeze=False)[0], places, strict=True):
        ends = {name: BEFORE + fast * m for name, m in zip(COLOURS, at, strict=True)}
        arc = [
            (0.3 + 0.04 * fast * at[0] * i / 90, BEFORE + fast * at[0] * i / 90) for i in range(91)
        ]  # a spiral
        axis.plot(
            [r * math.cos(a) for r, a in arc], [r * math.sin(a) for r, a in arc], ":", color=COLOURS["query"]
        )
        for name, angle in ends.items():
            x, y = math.cos(angle), math.sin(angle)
            axis.annotate(
                "", (x, y), (0, 0), arrowprops={"arrowstyle": "-|>", "color": COLOURS[name], "lw": 2}
            )
            side = "left" if x > 0 else "right"  # of the place, so that the word stands outside of the circle
            axis.text(1.1 * x, 1.35 * y, name, fontsize=TEXT, ha=side, va="center")
        between = math.degrees(ends["query"] - ends["key"]) % 360
        between = min(between, 360 - between)
        axis.add_patch(_circle())
        axis.set_title(f"query at {at[0]:,}\nkey at {at[1]:,}\n{between:.0f}° between them", fontsize=TEXT)
        axis.set(xlim=(-1.9, 1.9), ylim=(-1.4, 1.2), aspect="equal")
        axis.axis("off")
        said.append(f"query at {at[0]:,}, key at {at[1]:,}: {between:.0f} degrees between them")
    figure.supxlabel("dotted: how far the query was turned", fontsize=TEXT)
    return render(figure, f"Two arrows in a circle. {'; '.join(said)}.")


def _circle():
    from matplotlib.patches import Circle

    return Circle((0, 0), 1, fill=False, color="#cccccc")
