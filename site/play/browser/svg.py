"""What the page's drawings share: an SVG that follows the page's theme, with the sizes of the course's pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from simulator.plots.picture import COLUMN, Picture
from simulator.plots.style import CATEGORIES
from simulator.plots.timeline import COLOURS, IDLE, INK, lightness

SIZE, SMALL = 12, 11.2  # px of text: TEXT and NUMBER of simulator.plots
LETTER = 0.56  # of the size: the width of an average letter, a little more than needed
LINE = "#d0d7de"
# What is dark in a picture on white would vanish on a dark page. style.css gives these variables other values there.
THEMED = {INK: "ink", IDLE: "idle", LINE: "line", "#ffffff": "paper", CATEGORIES["parameters"]: "parameters"}
THEMED |= {colour: f"weights-{i}" for i, colour in enumerate(COLOURS["weight gradients"])}


class Svg:
    """Shapes that are collected from the back to the front."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, colour: str, edge: float = 0) -> None:
        """A filled rectangle; ``edge``: the width of a line around it in the colour of the paper."""
        line = f"; stroke: {_paint('#ffffff')}; stroke-width: {edge}" if edge else ""
        self.parts.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(0, width):.2f}" height="{max(0, height):.2f}" '
            f'style="fill: {_paint(colour)}{line}"/>'
        )

    def line(
        self, points: Sequence[tuple[float, float]], colour: str = INK, width: float = 1, dash: str = ""
    ) -> None:
        """A line through points."""
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<polyline points="{path}"{dashed} style="fill: none; stroke: {_paint(colour)}; stroke-width: {width}"/>'
        )

    def area(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        """A filled polygon."""
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
        self.parts.append(f'<polygon points="{path}" style="fill: {_paint(colour)}"/>')

    def text(
        self,
        x: float,
        y: float,
        words: str,
        anchor: str = "start",
        size: float = SIZE,
        colour: str = INK,
        clear: bool = False,
    ) -> None:
        """Words whose middle line is at ``y``; ``clear``: lines behind them stop before they touch a letter."""
        rim = f"; paint-order: stroke; stroke: {_paint('#ffffff')}; stroke-width: 4" if clear else ""
        self.parts.append(
            f'<text x="{x:.2f}" y="{y + 0.35 * size:.2f}" font-size="{size}" text-anchor="{anchor}" '
            f'style="fill: {_paint(colour)}{rim}">{escape(words)}</text>'
        )

    def inside(self, x: float, y: float, words: str, box: str) -> None:
        """A number in a box of that colour, in the ink that can be read on it in either theme."""
        colour = (
            "#222222 " if lightness(box) > 0.5 else "white"
        )  # the blank: this ink stays dark on a dark page
        self.text(x, y, words, "middle", SMALL, colour)

    def legend(self, entries: Sequence[tuple[str, str]], y: float) -> float:
        """Colours and their names, in lines from the left; returns where the last line ends."""
        x = 0.0
        for colour, name in entries:
            width = 18 + wide(name) + 14
            if x and x + width > COLUMN:
                x, y = 0.0, y + 18
            if colour:
                self.box(x, y + 3, 12, 12, colour)
            self.text(x + (18 if colour else 0), y + 9, name)
            x += width
        return y + 18

    def picture(self, height: float, alt: str) -> Picture:
        """The drawing, as wide as a notebook's column, and the sentence that says what is in it."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{COLUMN}" height="{height:.0f}"'
        view = f'viewBox="0 0 {COLUMN} {height:.0f}" font-family="system-ui, DejaVu Sans, sans-serif"'
        return Picture(f"{head} {view}>{''.join(self.parts)}</svg>", alt)


def wide(words: str, size: float = SIZE) -> float:
    """About how many px a text is wide."""
    return LETTER * size * len(words)


def ticks(longest: float, most: int = 6) -> list[float]:
    """Round numbers from 0 to ``longest``: at most ``most`` of them after 0."""
    rough = longest / most
    power = 10 ** math.floor(math.log10(rough))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= rough * (1 - 1e-9))
    return [k * step for k in range(int(longest / step * (1 + 1e-9)) + 1)]


def _paint(colour: str) -> str:
    return f"var(--{THEMED[colour]}, {colour})" if colour in THEMED else colour.strip()
