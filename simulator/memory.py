"""The memory ledger: what one rank must hold, by category, in bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryBreakdown:
    """Bytes on one rank, by what they are for (the categories of ZeRO, arXiv:1910.02054, section 3)."""

    parameters: float = 0
    gradients: float = 0
    optimizer_states: float = 0
    activations: float = 0
    buffers: float = 0

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer_states + self.activations + self.buffers

    @property
    def model_states(self) -> float:
        """Parameters, gradients and optimizer states: all that does not depend on the batch."""
        return self.parameters + self.gradients + self.optimizer_states
