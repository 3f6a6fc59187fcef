"""torchview's drawing of a network that is a chain of boxes, in rows: a third as tall as downwards (chapter 01)."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from course_lib.observe.networks.draw import picture_of
from course_lib.observe.networks.module_graph import ModuleGraph, describe_parameters
from course_lib.observe.networks.render import Graph, embolden, render_dot
from course_lib.observe.show.shown import Shown
from simulator.plots.picture import Picture


class _Rows(Graph):
    """A chain, whose boxes stand from left to right, a few in a row."""

    across: int = 3

    def to_dot(self, direction: str = "TB") -> str:
        """The DOT source; arrows from row to row move no box, and unseen ones keep the columns."""
        dot = super().to_dot(direction).replace("nodesep=0.12", "nodesep=0.22")
        count = len(list(self.frame.boxes()))
        rows = [range(first, min(first + self.across, count)) for first in range(0, count, self.across)]
        lines = ["{rank=same " + " ".join(f"n{box}" for box in row) + "}" for row in rows]
        for row, below in itertools.pairwise(rows):
            arrow = f"n{row[-1]} -> n{below[0]}\n"
            dot = dot.replace(arrow, arrow.replace("\n", " [constraint=false]\n"))
            lines += [
                f"n{box} -> n{other} [style=invis weight=9]" for box, other in zip(row, below, strict=False)
            ]
        return dot.rstrip().removesuffix("}") + "\n".join(lines) + "\n}\n"

    def to_svg(self) -> str | None:
        """An SVG, or ``None`` when there is no Graphviz at all."""
        svg = render_dot(self.to_dot())
        return svg and embolden(svg)


def draw_rows(model: nn.Module, *inputs: Tensor, notes: Mapping[str, str] | None = None) -> Picture | Shown:
    """The boxes of ``model``, a chain, as torchview records them in a run on ``inputs``; the model stays as it is.

    Args:
        model, inputs: as ``draw`` takes them.
        notes: name of a box -> what is written below its other lines.

    Raises:
        ValueError: the boxes are no chain.
    """
    graph = ModuleGraph(copy.deepcopy(model), inputs, 1, (), None, reshapes=False).graph
    boxes = list(graph.frame.boxes())
    if graph.edges != [(box.key, after.key) for box, after in itertools.pairwise(boxes)]:
        raise ValueError(f"{type(model).__name__} is no chain of boxes: use draw")
    sizes = describe_parameters(list(model.parameters()))
    names = ", ".join(box.name for box in boxes)
    said = "".join(f" {name}: {note}." for name, note in (notes or {}).items())
    graph.frame.inside = [replace(box, lines=_lines(box.lines, (notes or {}).get(box.name))) for box in boxes]
    alt = f"Network graph of {type(model).__name__}: {names}; {sizes}.{said}"
    return picture_of(_Rows(graph.frame, graph.edges), alt)


def _lines(lines: tuple[str, ...], note: str | None) -> tuple[str, ...]:
    """Without the bytes of parameters, which one takes for what the box keeps."""
    counted = (
        line.split(" parameters, ")[0] + " parameters" if " parameters, " in line else line for line in lines
    )
    return (*counted, note) if note else tuple(counted)
