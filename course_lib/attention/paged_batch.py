"""Sequences of a paged cache as the cache of one forward: ``model(tokens, cache=PagedBatch(cache, tables))``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.attention.paged import BlockTable, PagedCache, paged_attention


class PagedBatch:
    """One row of the batch for each table. The sequences may differ in length; each gets as many new tokens.

    It takes the place of ``models/kv_cache.py``'s ``KVCache``: the model asks where the new tokens stand, and in each
    layer what its queries attend to.
    """

    def __init__(self, cache: PagedCache, tables: Sequence[BlockTable]) -> None:
        self.cache, self.tables = cache, list(tables)

    def extend(self, tokens: Tensor) -> Tensor:
        """Make room for new tokens ``(batch, seq)``; return their positions ``(batch, seq)``.

        Raises:
            OutOfBlocks: too few blocks are free; nothing has changed.
        """
        batch, seq = tokens.shape
        if batch != len(self.tables):
            raise ValueError(f"the batch has {batch} rows; there are {len(self.tables)} block tables.")
        self.cache.append(*self.tables, tokens=seq)
        device = self.cache.keys.device
        most = max(len(table.blocks) for table in self.tables)
        rows = [table.blocks + [0] * (most - len(table.blocks)) for table in self.tables]
        self.block_tables = torch.tensor(rows, device=device)  # (batch, most)
        self.lengths = torch.tensor([table.length for table in self.tables], device=device)
        positions = self.lengths[:, None] - seq + torch.arange(seq, device=device)
        self.blocks = self.block_tables.gather(1, positions // self.cache.block_size)  # (batch, seq)
        self.places = positions % self.cache.block_size
        return positions

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Write the new keys and values ``(batch, kv_heads, seq, size)`` into their blocks, and attend over all."""
        if mask is not None:
            raise ValueError("a paged cache attends causally; leave the mask out.")
        if k.requires_grad:
            raise ValueError("a cache keeps no graph for backward: call the model under torch.no_grad().")
        self._must_fit(layer, k)
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys[self.blocks, self.places] = k.transpose(1, 2)  # (batch, seq, kv_heads, size)
        values[self.blocks, self.places] = v.transpose(1, 2)
        return paged_attention(q, keys, values, self.block_tables, self.lengths)

    def _must_fit(self, layer: int, k: Tensor) -> None:
        layers, _, _, kv_heads, size = self.cache.keys.shape
        if layer >= layers:
            raise ValueError(f"the cache has {layers} layers; the model has more.")
        if (k.shape[1], k.shape[3], k.dtype) != (kv_heads, size, self.cache.keys.dtype):
            raise ValueError(
                f"the cache was made for {kv_heads} heads of {size} numbers, {self.cache.keys.dtype}; "
                f"the model gives {k.shape[1]} heads of {k.shape[3]}, {k.dtype}."
            )
