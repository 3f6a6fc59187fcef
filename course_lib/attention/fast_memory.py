"""A small memory beside a large one: what is loaded and stored is counted, and what does not fit is refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from simulator.predict.attention_io import Moved


class FastMemory:
    """Tiles of tensors that live in slow memory.

    A tile is loaded or made inside a ``with memory.tiles():`` and given up at its end, so the blocks of the program
    show what is held at a time. Slow tensors have names, by which ``moved`` adds up their bytes.

    Args:
        capacity: bytes that fit; None: any number.

    Attributes:
        peak: the most bytes held at a time.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity, self.held, self.peak = capacity, 0, 0
        self._bytes: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    @property
    def moved(self) -> dict[str, Moved]:
        """Bytes read from slow memory and written to it, by name: what ``simulator.predict.attention_io`` predicts."""
        return {name: Moved(*counts) for name, counts in self._bytes.items()}

    @contextmanager
    def tiles(self) -> Iterator[None]:
        """Everything that is loaded or made inside is given up at the end."""
        before = self.held
        try:
            yield
        finally:
            self.held = before

    def load(self, name: str, slow: Tensor, *index: Any) -> Tensor:
        """A copy of ``slow[index]`` in fast memory; its bytes are counted as read."""
        tile = slow[index].clone()
        self._bytes[name][0] += nbytes(tile)
        return self.make(tile)

    def make(self, tile: Tensor) -> Tensor:
        """A tile that was computed in fast memory: it takes room and moves nothing.

        Raises:
            ValueError: it does not fit beside what is held.
        """
        if self.capacity is not None and self.held + nbytes(tile) > self.capacity:
            raise ValueError(
                f"a tile of {nbytes(tile):,} bytes does not fit: the fast memory holds {self.held:,} of "
                f"{self.capacity:,} bytes; use smaller blocks."
            )
        self.held += nbytes(tile)
        self.peak = max(self.peak, self.held)
        return tile

    def store(self, name: str, slow: Tensor, tile: Tensor, *index: Any) -> None:
        """Copy a tile to ``slow[index]``; the bytes that arrive are counted as written."""
        slow[index] = tile
        self._bytes[name][1] += nbytes(slow[index])


def nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
