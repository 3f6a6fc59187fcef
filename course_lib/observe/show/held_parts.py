"""Which tokens and which columns of an activation each rank holds, from module to module of a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course_lib.observe.show.collectives import _Canvas
from simulator.plots.picture import Picture

FILLED = ("#0b5a8c", "#d9772b", "#1b6b48", "#5e3c8f")  # by tokens
PALE = ("#cfe3f1", "#fbe3cf", "#d5ecdf", "#e6ddf2")
LEFT, BOX, TALL, GAP, LOW = 58, 62, 46, 65, 10  # pixels: ranks' names, one activation, what is between


@dataclass(frozen=True)
class Held:
    """An activation on every rank.

    Args:
        name: the module that returned it.
        shape: (tokens, columns) that a rank has.
        whole: (tokens, columns) of the whole activation.
        partial: a rank has only its part of a sum over the ranks.
        before: what is done between the activation to the left and this one.
    """

    name: str
    shape: tuple[int, int]
    whole: tuple[int, int]
    partial: bool = False
    before: str = ""

    def box(self, rank: int) -> tuple[float, float, float, float]:
        """Left, top, width and height of the rank's part, as shares of the whole."""
        tokens, columns = (own / of for own, of in zip(self.shape, self.whole, strict=True))
        return (rank * columns if columns < 1 else 0, rank * tokens if tokens < 1 else 0, columns, tokens)


def plot_held(panels: Mapping[str, Sequence[Held]], ranks: int = 2, back: bool = False) -> Picture:
    """For each panel the activations from left to right, one row a rank. A row of a square is a token, and a colour
    the tokens of one rank; what the rank has is filled, and pale and hatched, in each rank in another direction, where
    it is only its part of a sum.

    Args:
        panels: title -> activations.
        ranks: how many of them are drawn.
        back: the arrows go from right to left, as in backward.

    Raises:
        ValueError: there is nothing to draw, or more ranks than colours.
    """
    if not panels or not all(panels.values()):
        raise ValueError(
            "there is nothing to draw: give at least one panel, each with at least one activation"
        )
    if not 1 <= ranks <= len(FILLED):
        raise ValueError(f"the picture has colours for 1 to {len(FILLED)} ranks, not {ranks}")
    canvas = _Canvas()
    top = 0.0
    for title, steps in panels.items():
        canvas.text(12, top + 20, title, 14, font_weight="bold")
        for rank in range(ranks):
            y = top + 34 + rank * (TALL + LOW)
            canvas.text(12, y + TALL / 2 + 4, f"rank {rank}", 12)
            for i, step in enumerate(steps):
                _activation(canvas, LEFT + i * (BOX + GAP), y, step, rank, ranks)
        bottom, middle = top + 34 + ranks * (TALL + LOW), top + 34 + (ranks * (TALL + LOW) - LOW) / 2
        for i, step in enumerate(steps):
            x = LEFT + i * (BOX + GAP)
            for line, words in enumerate(step.name.split("\n")):
                canvas.text(x + BOX / 2, bottom + 8 + 15 * line, words, 12, text_anchor="middle")
            if i:
                ends = (x - 7, x - GAP + 6) if back else (x - GAP + 6, x - 7)
                canvas.arrow(f"M{ends[0]:g},{middle:g} H{ends[1]:g}")
                for line, words in enumerate(reversed(step.before.split("\n") if step.before else [])):
                    canvas.text(x - GAP / 2, middle - 7 - 15 * line, words, 12, text_anchor="middle")
        canvas.height = bottom + 8 + 15 * max(step.name.count("\n") for step in steps)
        top = canvas.height + 14
    return canvas.picture(" ".join(_sentence(title, steps) for title, steps in panels.items()))


def _activation(canvas: _Canvas, x: float, y: float, step: Held, rank: int, ranks: int) -> None:
    """One box: a strip in the colour of each rank whose tokens this rank has."""
    canvas.box(x, y, BOX, TALL, "#ffffff", "#8a8a8a")
    colours, (left, up, width, height) = PALE if step.partial else FILLED, step.box(rank)
    strips = range(ranks) if height == 1 else [rank]
    for place, owner in enumerate(strips):
        tall = height * TALL / len(strips)
        corner = (x + left * BOX, y + up * TALL + place * tall)
        canvas.box(*corner, width * BOX, tall, colours[owner], "#8a8a8a")
        if step.partial:
            _hatch(canvas, *corner, width * BOX, tall, rank)


def _hatch(canvas: _Canvas, x: float, y: float, width: float, height: float, rank: int) -> None:
    """Slanted lines, which lean to the right on even ranks and to the left on odd ones, closer on later ranks."""
    gap, path = 9 - 4 * (rank // 2), ""
    for step in range(int((width + height) / gap)):
        start = (step + 0.5) * gap - height  # where the line meets the lower or the upper edge
        low, high = max(0.0, start), min(width, start + height)
        ends = [(low, low - start), (high, high - start)]
        points = [(x + along, y + (height - off if rank % 2 == 0 else off)) for along, off in ends]
        path += "M{:g},{:g} L{:g},{:g} ".format(*points[0], *points[1])
    canvas.parts.append(f'<path d="{path.strip()}" fill="none" stroke="#8a8a8a" stroke-width="1"/>')


def _sentence(title: str, steps: Sequence[Held]) -> str:
    held = []
    for step in steps:
        tokens, columns = (own < of for own, of in zip(step.shape, step.whole, strict=True))
        what = "its own tokens" if tokens else "its own columns" if columns else "everything"
        name = step.name.replace("\n", " ")
        held.append(f"of {name} {'its part of the sum' if step.partial else what}")
    return f"{title}: each rank has {', '.join(held)}."
