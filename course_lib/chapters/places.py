"""Chapter 11: what one rank does, each action with its place, before and after ``in_order`` sorts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from course_lib.by_hand.pipeline import in_order
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH
from simulator.plots.timeline import COLOURS, KINDS


def show_places(
    place: Callable[[str, int, int], float], m: int = 3, r: int = 0, kinds: Sequence[str] = ("F", "BW")
) -> Picture:
    """Two bars of rank ``r``: its actions, above each its place, and where each one goes when they are sorted."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 1.9), layout="constrained")
    axis = figure.subplots()
    middles: list[dict[str, float]] = []
    lines = []
    orders = (in_order(r + 1, m, lambda *_: 0, kinds)[r], in_order(r + 1, m, place, kinds)[r])
    for name, actions, low in zip(("written", "sorted"), orders, (2.0, 0.0), strict=True):
        left, said, middle = 0.0, [], {}
        for kind, _, i in actions:
            action, at, width = f"{kind}{i}", f"{place(kind, r, i):g}", len(kind)  # BW takes 2 units
            colour = COLOURS[KINDS[kind[0]]][0]
            axis.barh(low, width, 0.8, left=left, color=colour, edgecolor="white", linewidth=1.5)
            middle[action] = left + width / 2
            ink = "white" if kind == "W" else "#222222"
            axis.text(middle[action], low, action, ha="center", va="center", fontsize=TEXT, color=ink)
            beside = low + (0.65 if low else -0.65)
            axis.text(middle[action], beside, at, ha="center", va="center", fontsize=TEXT)
            left += width
            said.append(f"{action} at {at}")
        middles.append(middle)
        lines.append(f"{name}: {', '.join(said)}")
    for action, above in middles[0].items():
        axis.plot((above, middles[1][action]), (1.55, 0.45), color="#8a8a8a", linewidth=1)
    axis.set_yticks((2.65, 2, 0, -0.65), ("place", "as written", "sorted", "place"))
    axis.set_xticks([])
    axis.set_ylim(-1, 3)
    axis.margins(x=0)
    axis.tick_params(length=0, labelsize=TEXT)
    axis.spines[:].set_visible(False)
    return render(figure, "; ".join(lines) + ".")
