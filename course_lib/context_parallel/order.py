"""Which tokens of a text each rank has, and which of another rank's keys they may see: the data side.

A causal text is cut in 2p pieces, of which rank r has the pieces r and 2p-1-r (zigzag): an early one, which sees
little, and a late one, which sees much. So all ranks compute as many scores. A text in which every token sees all
others is cut in p pieces. Where u neighbours deal out heads by an all-to-all, they share one such part of the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor


class Tile(NamedTuple):
    """What a rank's queries see of another rank's keys."""

    rows: slice
    keys: slice
    causal: bool  # a query sees itself and the keys before it; otherwise all of them


@dataclass(frozen=True)
class Order:
    """How texts are dealt out.

    Args:
        ranks: p, the parts of a text.
        causal: without a mask a token sees no later one.
        zigzag: 2p pieces in place of p.
        sharing: u, neighbours that have one part together, each as many tokens of it. There are p u ranks then.
    """

    ranks: int
    causal: bool
    zigzag: bool
    sharing: int = 1

    def check(self, length: int) -> None:
        """Raise a ValueError if a text of so many tokens cannot be dealt out."""
        pieces = self.ranks * math.lcm(1 + self.zigzag, self.sharing)
        if length % pieces:
            raise ValueError(
                f"{self.ranks * self.sharing} context-parallel ranks cannot share a text of {length} tokens in "
                f"{pieces} equal pieces: pad it to a multiple"
            )

    def cut(self, x: Tensor, rank: int, dim: int = 1) -> Tensor:
        """What belongs to a rank's tokens of something that all tokens have."""
        self.check(x.shape[dim])
        pieces, (part, place) = x.chunk(self.ranks * (1 + self.zigzag), dim), divmod(rank, self.sharing)
        own = [pieces[part], pieces[-1 - part]] if self.zigzag else [pieces[part]]
        return torch.cat(own, dim).chunk(self.sharing, dim)[place]

    def dealt(self, x: Tensor, dim: int) -> Tensor:
        """All of it, one rank's tokens after the other's."""
        return torch.cat([self.cut(x, rank, dim) for rank in range(self.ranks * self.sharing)], dim)

    def positions(self, own: int, rank: int, device: torch.device | None = None) -> Tensor:
        """Where a rank's ``own`` tokens stand in the text."""
        return self.cut(torch.arange(own * self.ranks * self.sharing, device=device), rank, 0)

    def tile(self, own: int, rank: int, source: int) -> Tile | None:
        """What part ``rank`` sees of the ``own`` tokens of part ``source``, without a mask; None: nothing.

        A part's tokens stand in the order of the text, so among themselves they are plainly causal.
        """
        everything, half = slice(0, own), own // 2
        if not self.causal or source == rank:
            return Tile(everything, everything, self.causal)
        if self.zigzag:
            # Of an earlier rank the late piece is hidden; of a later one all, but from the late piece.
            rows, keys = (slice(0, own), slice(0, half)) if source < rank else (slice(half, own), everything)
            return Tile(rows, keys, False)
        return Tile(everything, everything, False) if source < rank else None

    def scores(self, length: int, rank: int) -> int:
        """How many pairs of a query and a key a rank computes for one head of one text: its work."""
        self.check(length)
        own, total = length // self.ranks, 0
        for source in range(self.ranks):
            if tile := self.tile(own, rank, source):
                rows, keys = (part.stop - part.start for part in tile[:2])
                total += rows * (rows + 1) // 2 if tile.causal else rows * keys
        return total


class Cutter:
    """Cuts a batch for one rank, as the model's forward takes it.

    Masks keep the keys of all ranks, and the queries of those that share a part. One for each query, ``(batch, heads,
    seq, seq)``, becomes ``(batch, p * u * u * heads, own, own)``: blocks stand where heads do, since models look at the
    other dimensions. One of padding alone, ``(batch, seq)``, keeps its length. ``mask_of_part`` and ``blocks_of_mask``
    take both apart again.

    Args:
        names: those of the model's arguments, in order: a mask has "mask" in its name.
    """

    def __init__(self, order: Order, rank: int, names: Sequence[str]) -> None:
        self.order, self.rank, self.names = order, rank, names

    def __call__(self, *batch: Tensor) -> list[Tensor]:
        """Inputs, then targets: of each the part of this rank."""
        *inputs, targets = batch
        if targets.dim() < 2:
            raise ValueError(
                f"with context parallelism each token has a target, and these have the shape {tuple(targets.shape)}"
            )
        cut = [
            self._mask(x) if "mask" in name else self.order.cut(x, self.rank)
            for name, x in zip(self.names, inputs, strict=False)
        ]
        return [*cut, self.order.cut(targets, self.rank)]

    def _mask(self, mask: Tensor) -> Tensor:
        columns = self.order.dealt(mask, -1)
        if mask.dim() == 2:
            return columns
        p, u, seq = self.order.ranks, self.order.sharing, mask.shape[-1]
        columns = columns if mask.dim() == 4 else columns[:, None]
        parts = replace(self.order, sharing=1)
        rows = parts.cut(columns.expand(*columns.shape[:2], seq, seq), self.rank // u, -2)
        blocks = rows.unflatten(-2, (u, -1)).unflatten(-1, (p * u, -1))
        return blocks.permute(0, 4, 2, 1, 3, 5).flatten(1, 3)


def blocks_of_mask(mask: Tensor, ranks: int, own: int) -> Tensor:
    """Of a part's mask: ``(p, batch, heads, own or 1, own)``, a block for each part's keys."""
    if mask.shape[-1] != own:  # padding alone
        return mask.unflatten(-1, (ranks, own)).movedim(-2, 0)
    return mask.unflatten(1, (ranks, -1)).movedim(1, 0)


def mask_of_part(mask: Tensor, order: Order, place: int, own: int) -> Tensor:
    """Of what ``Cutter`` has made of a mask: ``(batch, p * heads, u own, u own)``, a block for each part's keys, of the
    heads that are dealt to the rank at this place of its part."""
    if mask.shape[-1] != own:  # padding alone
        return mask
    p, u = order.ranks, order.sharing
    # (batch, p, keys' ranks, queries' ranks, heads, own, own) -> (batch, p, heads, queries, keys)
    blocks = mask.unflatten(1, (p, u, u, -1)).permute(0, 1, 4, 3, 5, 2, 6).flatten(5, 6).flatten(3, 4)
    heads = blocks if blocks.shape[2] == 1 else blocks.chunk(u, 2)[place]
    return heads.flatten(1, 2)
