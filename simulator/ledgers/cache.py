"""The ledger of a KV cache: what is reserved for whom at each step, and how much of it holds tokens.

A *slot* has room for the keys and values of one token, in all layers. A cache is a row of slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.inputs.checks import at_least, index, refuse


class Piece(NamedTuple):
    """Slots beside each other that are reserved together: a block, or the whole region of a sequence.

    Args:
        start: the first of them.
        slots: how many.
        tokens: how many of them hold a token.
        holders: the requests that have it, by number, ascending; more than one share it.
    """

    start: int
    slots: int
    tokens: int
    holders: tuple[int, ...]


class CacheUse(NamedTuple):
    """Slots of a cache, by what they are for; a mean over steps. Together they are the whole cache."""

    tokens: float  # a token is in it
    filled_later: float  # reserved, and a token of its holders will come
    never_filled: float  # reserved, and no token will ever come
    free: float  # reserved for nobody

    @property
    def slots(self) -> float:
        return sum(self)


@dataclass(frozen=True)
class CacheHistory:
    """What a cache held at every step.

    Args:
        slots: of the cache.
        steps: for each step the pieces, by their start.
        waiting: for each step, how many requests had come and were not in the cache.
    """

    slots: int
    steps: tuple[tuple[Piece, ...], ...]
    waiting: tuple[int, ...]

    def __post_init__(self) -> None:
        at_least(1, slots=self.slots)
        if len(self.waiting) != len(self.steps):
            refuse("waiting", f"one number for each of {len(self.steps)} steps", list(self.waiting))

    @property
    def tokens(self) -> list[int]:
        """Slots that hold a token, step by step. A shared block counts once."""
        return [sum(piece.tokens for piece in pieces) for pieces in self.steps]

    @property
    def reserved(self) -> list[int]:
        """Slots that somebody has, step by step."""
        return [sum(piece.slots for piece in pieces) for pieces in self.steps]

    @property
    def crowded(self) -> list[int]:
        """The steps at which a request waits."""
        return [step for step, waiting in enumerate(self.waiting) if waiting]

    def use(self, steps: Sequence[int] | None = None) -> CacheUse:
        """The mean over ``steps`` (None: those at which a request waits, because only then free slots are a loss)."""
        steps = self.crowded if steps is None else steps
        if not steps:
            raise ValueError("no step is given, and at none does a request wait: name the steps")
        for step in steps:
            index(len(self.steps), step=step)
        final = self._final_tokens()
        tokens = sum(piece.tokens for step in steps for piece in self.steps[step])
        ever = sum(final[step][piece.start] for step in steps for piece in self.steps[step])
        reserved = sum(piece.slots for step in steps for piece in self.steps[step])
        sums = (tokens, ever - tokens, reserved - ever, self.slots * len(steps) - reserved)
        return CacheUse(*(total / len(steps) for total in sums))

    def _final_tokens(self) -> list[dict[int, int]]:
        """For each step, start of a piece -> the most tokens that this piece will hold before it is given back."""
        later: dict[int, tuple[tuple[int, ...], int]] = {}
        found = []
        for pieces in reversed(self.steps):
            now = {}
            for piece in pieces:
                holders, most = later.get(piece.start, ((), 0))
                same = set(holders) & set(piece.holders)
                now[piece.start] = (piece.holders, max(piece.tokens, most if same else 0))
            later = now
            found.append({start: most for start, (_, most) in now.items()})
        return found[::-1]
