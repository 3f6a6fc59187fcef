"""FLOPs drawn over a network: every box says how many, and is the darker the larger its part of the step is."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from course_lib.observe.ledgers.flops import flops_by_module
from course_lib.observe.networks.placement import size_of
from course_lib.observe.networks.render import PLAIN
from course_lib.observe.show.amounts import amount

# Least part of the step's FLOPs -> colour, light enough to print black text on.
SHADES = ((0.2, "#f28e4b"), (0.1, "#f7b37d"), (0.05, "#fad0ab"), (0.01, "#fde8d4"))


class FlopsOverlay:
    """Takes the place of a ``Placement`` in a drawing: what to write on a module's box, and its colour."""

    def __init__(self, model: nn.Module, inputs: tuple) -> None:
        self.flops = {name: f.forward + f.backward for name, f in flops_by_module(model, *inputs).items()}
        self.total = self.flops[""]
        self.drawn: set[str] = set()  # colours

    def describe(
        self, parameters: Mapping[str, nn.Parameter], name: str
    ) -> tuple[list[str], tuple[str, ...]]:
        """Lines and colours of the box of module ``name``, on which these parameters are written."""
        lines, flops = [], self.flops[name]
        if parameters:
            count = sum(p.numel() for p in {id(p): p for p in parameters.values()}.values())
            lines.append(f"{count:,} parameters, {amount(size_of(parameters.values()), 'B')}")
        if flops:
            lines.append(f"{amount(flops, 'FLOP')}, {self._percent(flops)}")
        self.drawn.add(shade := self._shade(flops))
        return lines, (shade,)

    def describe_function(self, name: str) -> tuple[list[str], tuple[str, ...]]:
        """A function's FLOPs stand on the module that calls it."""
        return [], (PLAIN,)

    def legend(self) -> list[tuple[str, str]]:
        total = f"of {amount(self.total, 'FLOP')}, forward and backward"
        rows = [(shade, f"at least {least:.0%} {total}") for least, shade in SHADES if shade in self.drawn]
        return [(shade, text.replace("%", " %")) for shade, text in rows]

    def _shade(self, flops: int) -> str:
        return next((shade for least, shade in SHADES if flops >= least * self.total and flops), PLAIN)

    def _percent(self, flops: int) -> str:
        part = 100 * flops / self.total
        return f"{part:.0f} %" if part >= 0.5 else "under 1 %"
