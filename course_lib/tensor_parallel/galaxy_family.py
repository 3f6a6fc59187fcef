"""What ``galaxy.py`` must know about a kind of layer to place its blocks one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from simulator.inputs.galaxy import Transition

Forward = Callable[..., Tensor]


class Moves(Protocol):
    """What the layers call between two blocks; ``galaxy.py`` has it."""

    transitions: Mapping[str, Transition]
    placed: Mapping[str, str]  # the placement of each block

    def __call__(self, block: str, x: Tensor) -> Any:
        """For each reader of the block's result x, the tensor that it reads; a single one not in a tuple."""
        ...

    def own_range(self) -> tuple[int, int]:
        """Where this rank's tokens begin in the sequence, and how many there are."""
        ...


@dataclass(frozen=True)
class Family:
    """Layers of one kind.

    Attributes:
        blocks: for the name of a module in the layer, the block to which it belongs with all that is inside it; a
            longer name counts before a shorter one.
        exits: for a block, the module with which it ends.
        entry: the one linear layer that reads the MLP's input; None where several do.
        kind: a name of ``simulator.inputs.galaxy.LAYERS``, which says what reads a block's result.
        layer_forward: ``(layer, moves, x, …)``, instead of the layer's own forward.
        stack_forward: ``(stack, shares, end, …)``, instead of the forward of the module that calls the layers.
    """

    blocks: Mapping[str, str]
    exits: Mapping[str, str]
    kind: str
    layer_forward: Forward
    stack_forward: Forward
    entry: str | None = None

    def block_of(self, name: str) -> str | None:
        """The block of a module of the layer; None where the module holds more than one block."""
        inside = [prefix for prefix in self.blocks if f"{name}.".startswith(f"{prefix}.")]
        return self.blocks[max(inside, key=len)] if inside else None
