"""The memory ledger: what one rank holds, by category, at one moment and over time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from simulator.inputs.checks import finite


@dataclass(frozen=True, slots=True)
class MemoryBreakdown:
    """Bytes on one rank, by what they are for (the categories of ZeRO, arXiv:1910.02054, section 3).

    ``reserved`` is what the driver, the libraries and the allocator hold beyond the tensors of the other categories.
    """

    parameters: float = 0
    gradients: float = 0
    optimizer_states: float = 0
    activations: float = 0
    buffers: float = 0
    reserved: float = 0

    def __post_init__(self) -> None:
        # A difference of two sums may end a hair below zero, so that only what is no number is refused.
        finite(parameters=self.parameters, gradients=self.gradients, optimizer_states=self.optimizer_states)
        finite(activations=self.activations, buffers=self.buffers, reserved=self.reserved)

    @property
    def total(self) -> float:
        """The bytes of all tensors, without what is reserved beyond them."""
        return self.parameters + self.gradients + self.optimizer_states + self.activations + self.buffers

    @property
    def occupied(self) -> float:
        """What a device must have: the tensors, and what is reserved beyond them."""
        return self.total + self.reserved

    @property
    def model_states(self) -> float:
        """Parameters, gradients and optimizer states: all that does not depend on the batch."""
        return self.parameters + self.gradients + self.optimizer_states

    def __add__(self, other: MemoryBreakdown) -> MemoryBreakdown:
        mine, theirs = self.as_dict(), other.as_dict()
        return MemoryBreakdown(*(mine[name] + theirs[name] for name in mine))

    def as_dict(self) -> dict[str, float]:
        """Category -> bytes, without the total."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class Peak(NamedTuple):
    """The most bytes alive at once, from when on, and what was being done."""

    bytes: float
    time: float
    action: str


@dataclass(frozen=True)
class MemoryHistory:
    """The bytes alive on one rank over time, by category.

    Args:
        rank: the rank whose memory this is.
        times: when something changed; the first is the beginning.
        held: for each of these times, what is alive from then on.
        actions: for each of these times, the action that changed it (``""`` at the beginning).
        end: when the last entry of ``held`` ends.
    """

    rank: int
    times: tuple[float, ...]
    held: tuple[MemoryBreakdown, ...]
    actions: tuple[str, ...]
    end: float

    @property
    def peak(self) -> Peak:
        """The highest total; the first time, if it is reached more than once."""
        at = max(range(len(self.held)), key=lambda i: self.held[i].total)
        return Peak(self.held[at].total, self.times[at], self.actions[at])

    def at(self, time: float) -> MemoryBreakdown:
        """What was alive at that time."""
        finite(time=time)
        before = [held for start, held in zip(self.times, self.held, strict=True) if start <= time]
        return before[-1] if before else self.held[0]
