"""Which parameters of a model are trained and which are frozen, with the bytes of both."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from course_lib.observe.networks.placement import size_of
from course_lib.observe.networks.render import PALETTE, PLAIN
from course_lib.observe.show.amounts import amount

TRAINED, FROZEN = PALETTE[1], "#cccccc"


class Trained:
    """Colours for ``draw``: what is trained stands out from what is frozen. Used in the place of a ``Placement``."""

    def __init__(self, model: nn.Module) -> None:
        self.trained = size_of(p for p in model.parameters() if p.requires_grad)
        self.frozen = size_of(p for p in model.parameters() if not p.requires_grad)

    def describe(
        self, parameters: Mapping[str, nn.Parameter], name: str
    ) -> tuple[list[str], tuple[str, ...]]:
        """What to write on the box of the module ``name`` with these parameters, and its colours."""
        lines, colours = [], []
        for word, wanted, colour in (("trained", True, TRAINED), ("frozen", False, FROZEN)):
            found = [p for p in parameters.values() if p.requires_grad == wanted]
            if found:
                lines.append(f"{word}: {amount(size_of(found), 'B')}")
                colours.append(colour)
        return lines, tuple(colours) or (PLAIN,)

    def describe_function(self, name: str) -> tuple[list[str], tuple[str, ...]]:
        """A function that the module ``name`` calls has no parameters."""
        return [], (PLAIN,)

    def legend(self) -> list[tuple[str, str]]:
        """(colour, "trained: 0.9 MB of parameters"), and the same for what is frozen."""
        rows = [(TRAINED, "trained", self.trained), (FROZEN, "frozen", self.frozen)]
        return [(colour, f"{word}: {amount(size, 'B')} of parameters") for colour, word, size in rows]
