"""Names beside the points of a picture, where none lies on another, on a point or a line, or over the edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simulator.plots.style import TEXT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

# Points from the mark to try, nearest first, and which side of the text is turned to it.
_SIDES = (
    *((8, 0, "left"), (-8, 0, "right"), (0, 10, "center"), (0, -10, "center")),
    *((7, 8, "left"), (7, -8, "left"), (-7, 8, "right"), (-7, -8, "right")),
)
_PLACES = [(dx * far, dy * far, side) for far in (1, 1.8, 2.8, 4, 5.5) for dx, dy, side in _SIDES]


def place_labels(
    axis: Axes, points: Sequence[tuple[str, float, float]], sides: Sequence[int] | None = None
) -> None:
    """Write each name as near to its point as there is room; a far one gets a thin line to it.

    What the axis holds already is kept free. Where there is no room at all, the name stands right of its point.

    Args:
        points: name, x, y in the axis' own units.
        sides: for each point, 1 where its name may not stand below it, -1 not above it, and 0 anywhere.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    figure = axis.figure
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()  # the layout decides where points lie
    renderer, frame = figure.canvas.get_renderer(), axis.get_window_extent()
    boxes = [text.get_window_extent(renderer) for text in axis.texts]
    dots = np.concatenate([_dots(axis, figure.dpi / 72), *[_along(line) for line in axis.lines]])
    wanted = zip(points, sides or [0] * len(points), strict=True)
    for (name, x, y), away in sorted(wanted, key=lambda each: (each[1] == 0, -each[0][2], each[0][1])):
        places = [place for place in _PLACES if place[1] * away >= 0]
        for tried, (dx, dy, side) in enumerate((*places, places[0])):
            line = {"arrowstyle": "-", "linewidth": 0.6, "color": "#8a8a8a", "shrinkB": 3}
            text = axis.annotate(
                name,
                (x, y),
                xytext=(dx, dy),
                textcoords="offset points",
                ha=side,
                va="center",
                fontsize=TEXT,
                arrowprops=line if max(abs(dx), abs(dy)) > 11 else None,
            )
            text.update_positions(renderer)
            box = Text.get_window_extent(text, renderer)  # without the line to the point
            inside = box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1
            covers = ((dots > box.min) & (dots < box.max)).all(1).any()
            free = inside and not covers and not any(box.overlaps(other) for other in boxes)
            if free or tried == len(places):
                break
            text.remove()
        boxes.append(box)


def _dots(axis: Axes, pixels: float) -> np.ndarray:
    """Where marks are: each line's points and eight places around them, ``(n, 2)`` in pixels."""
    around = np.array([(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)])
    ends = [line.get_transform().transform(line.get_xydata())[:, None] for line in axis.lines]
    wide = [3 / 7 * line.get_markersize() * pixels for line in axis.lines]
    return np.concatenate([at + half * around for at, half in zip(ends, wide, strict=True)]).reshape(-1, 2)


def _along(line: Line2D) -> np.ndarray:
    """Fifty places on each segment of a line that is drawn, ``(n, 2)`` in pixels."""
    ends = line.get_transform().transform(line.get_xydata())
    if line.get_linestyle() == "None" or len(ends) < 2:
        return ends
    parts = np.linspace(0, 1, 50)[:, None, None]
    return (ends[:-1] * (1 - parts) + ends[1:] * parts).reshape(-1, 2)
