"""A query and a key that RoPE has turned: one of their pairs of numbers, in a plane."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.plots.picture import Picture, render
from simulator.plots.style import PARTS, TEXT, TITLE, WIDTH

BEFORE = math.radians(-20)  # the angle of both before they are turned
COLOURS = {"query": PARTS[1], "key": PARTS[0]}


def plot_turned(places: Sequence[tuple[int, int]], fast: float = 1.0) -> Picture:
    """For each (place of the query, place of the key) a panel with both arrows and the angle between them.

    Before they are turned both point the same way. Spirals show how far each was turned, and
    the cosine of the angle stands below.

    Args:
        places: at least one pair of places.
        fast: radians that this pair of numbers is turned at each place; 1 for the first pair.
    """
    from matplotlib.figure import Figure

    if not places:
        raise ValueError("there is nothing to draw: give at least one (place of the query, place of the key)")
    figure = Figure(figsize=(WIDTH, 1.1 + 0.7 * WIDTH / max(3, len(places))))
    figure.subplots_adjust(left=0, right=1, bottom=0.1, top=0.72, wspace=0)
    said = []
    for axis, at in zip(figure.subplots(1, len(places), squeeze=False)[0], places, strict=True):
        ends = {name: BEFORE + fast * m for name, m in zip(COLOURS, at, strict=True)}
        for (name, angle), start in zip(ends.items(), (0.3, 0.18), strict=True):
            arc = [
                (start + 0.04 * (angle - BEFORE) * i / 90, BEFORE + (angle - BEFORE) * i / 90)
                for i in range(91)
            ]
            axis.plot(
                [r * math.cos(a) for r, a in arc], [r * math.sin(a) for r, a in arc], ":", color=COLOURS[name]
            )
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
        cosine = f"cos {math.cos(ends['query'] - ends['key']):+.2f}".replace("-", "−")
        axis.text(0, -1.75, cosine, fontsize=TITLE, ha="center", va="center")
        axis.set(xlim=(-1.9, 1.9), ylim=(-1.95, 1.2), aspect="equal")
        axis.axis("off")
        said.append(f"query at {at[0]:,}, key at {at[1]:,}: {between:.0f} degrees between them, {cosine}")
    figure.supxlabel("dotted: how far each was turned", fontsize=TEXT)
    return render(figure, f"Two arrows in a circle. {'; '.join(said)}.")


def _circle():
    from matplotlib.patches import Circle

    return Circle((0, 0), 1, fill=False, color="#cccccc")
