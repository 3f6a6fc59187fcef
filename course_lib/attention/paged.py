"""Paged attention (arXiv:2309.06180): keys and values of many sequences in one memory, cut into blocks.

While a model generates, the keys and values of earlier tokens are kept: the KV cache. A sequence does not own one long
piece of memory here. It has a *block table*, a list of blocks in the order of its tokens, and takes another block
when its last one is full. So at most one block of a sequence is not full, and no memory waits for tokens that may
never come. Several tables may list the same block, as long as nobody writes into it: whoever must write into a shared
block gets a copy of it first (copy on write).

Shapes in comments: ``batch``, ``seq``, ``blocks``, ``block_size`` (tokens in a block), ``heads``, ``kv_heads``,
``size`` (of one head).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from course_lib.attention.online_softmax import attend, merge, no_keys


class OutOfBlocks(RuntimeError):  # noqa: N818
    """Fewer blocks are free than are needed. Nothing was allocated, copied or written."""


class BlockAllocator:
    """Hands out blocks 0 to ``count`` - 1, and counts how many block tables list each of them."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"count is {count}; at least 1 block is needed.")
        self.references = [0] * count
        self._free = list(reversed(range(count)))  # the last one goes first

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """A block that nobody uses; it has one reference now."""
        if not self._free:
            raise OutOfBlocks(f"all {len(self.references)} blocks are in use.")
        block = self._free.pop()
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One table more lists the block."""
        self._must_be_in_use(block)
        self.references[block] += 1

    def release(self, block: int) -> None:
        """One table less lists the block. It is free when none is left."""
        self._must_be_in_use(block)
        self.references[block] -= 1
        if self.references[block] == 0:
            self._free.append(block)

    def _must_be_in_use(self, block: int) -> None:
        if not (0 <= block < len(self.references) and self.references[block]):
            raise ValueError(f"block {block} is not in use: it cannot be shared or released.")


@dataclass(eq=False)
class BlockTable:
    """Where the tokens of one sequence are: token i is in ``blocks[i // block_size]``, at place i % block_size."""

    blocks: list[int] = field(default_factory=list)
    length: int = 0  # tokens


class PagedCache:
    """The memory of all blocks, for every layer of a model, and the operations on block tables.

    Args:
        layers: of the model. A block holds the keys and values of its tokens for each of them.
        blocks: how many there are.
        block_size: tokens in a block.
        kv_heads, head_size: of keys and values.
    """

    def __init__(
        self,
        layers: int,
        blocks: int,
        block_size: int,
        kv_heads: int,
        head_size: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        sizes = {"layers": layers, "block_size": block_size, "kv_heads": kv_heads, "head_size": head_size}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; at least 1 is needed.")
        self.block_size = block_size
        self.allocator = BlockAllocator(blocks)
        shape = (layers, blocks, block_size, kv_heads, head_size)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    def blocks_to_append(self, *tables: BlockTable, tokens: int = 1) -> int:
        """How many free blocks ``append`` takes, copies of shared blocks included."""
        if tokens < 1:
            raise ValueError(f"tokens is {tokens}; at least 1 can be appended.")
        new = sum(self._whole(table.length + tokens) - len(table.blocks) for table in tables)
        writers = Counter(table.blocks[-1] for table in tables if table.length % self.block_size)
        # Of a block's tables, each that writes needs a copy; if all of them write, the last one may keep the block.
        copies = sum(min(n, self.allocator.references[block] - 1) for block, n in writers.items())
        return new + copies

    def append(self, *tables: BlockTable, tokens: int = 1) -> None:
        """Make room for ``tokens`` more at the end of each sequence; ``write`` then fills it, layer by layer.

        Raises:
            OutOfBlocks: too few blocks are free. The tables and the cache are as they were.
        """
        needed = self.blocks_to_append(*tables, tokens=tokens)
        if needed > self.allocator.free_blocks:
            raise OutOfBlocks(
                f"{needed} more blocks of {self.block_size} tokens are needed, and "
                f"{self.allocator.free_blocks} of {len(self.allocator.references)} are free."
            )
        for table in tables:
            if table.length % self.block_size and self.allocator.references[table.blocks[-1]] > 1:
                table.blocks[-1] = self._copy(table.blocks[-1])  # copy on write
            while len(table.blocks) < self._whole(table.length + tokens):
                table.blocks.append(self.allocator.allocate())
            table.length += tokens

    def _whole(self, tokens: int) -> int:
        """Blocks for so many tokens: the number divided by the block size, rounded up."""
        return -(-tokens // self.block_size)

    def _copy(self, block: int) -> int:
        """A new block with the same contents, in every layer, which takes the place of one reference to ``block``."""
        copy = self.allocator.allocate()
        self.keys[:, copy] = self.keys[:, block]
        self.values[:, copy] = self.values[:, block]
        self.allocator.release(block)
        return copy

    def fork(self, table: BlockTable, tokens: int | None = None) -> BlockTable:
        """A second sequence with the same first ``tokens`` tokens (None: all): it lists the same blocks."""
        tokens = table.length if tokens is None else tokens
        if not 0 <= tokens <= table.length:
            raise ValueError(f"tokens is {tokens}; of this sequence 0 to {table.length} can be shared.")
        shared = table.blocks[: self._whole(tokens)]
        for block in shared:
            self.allocator.share(block)
        return BlockTable(shared, tokens)

    def free(self, table: BlockTable) -> None:
        """End a sequence: it lists no block any more, and is empty."""
        for block in table.blocks:
            self.allocator.release(block)
        table.blocks, table.length = [], 0

    def write(self, layer: int, table: BlockTable, keys: Tensor, values: Tensor) -> None:
        """Keys and values of the table's last tokens, ``(seq, kv_heads, size)``; ``append`` has made room."""
        blocks, places = self.places(table, len(keys))
        self.keys[layer, blocks, places] = keys
        self.values[layer, blocks, places] = values

    def read(self, layer: int, table: BlockTable) -> tuple[Tensor, Tensor]:
        """All keys and values of a sequence, gathered into contiguous memory: ``(seq, kv_heads, size)`` each."""
        blocks, places = self.places(table, table.length)
        return self.keys[layer, blocks, places], self.values[layer, blocks, places]

    def places(self, table: BlockTable, tokens: int) -> tuple[Tensor, Tensor]:
        """For each of the last ``tokens`` tokens its block, and its place in that block: ``(tokens,)`` each."""
        positions = torch.arange(table.length - tokens, table.length, device=self.keys.device)
        blocks = torch.tensor(table.blocks, dtype=torch.long, device=self.keys.device)
        return blocks[positions // self.block_size], positions % self.block_size


def paged_attention(q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor) -> Tensor:
    """Causal attention of the last ``seq`` tokens of each sequence over its blocks, one block after the other.

    The parts are joined by the merge rule of chapter 15, so no sequence is ever gathered into one tensor.

    Args:
        q: ``(batch, heads, seq, size)``.
        keys, values: of one layer, ``(blocks, block_size, kv_heads, size)``.
        tables: ``(batch, most)``, the block tables; a row with fewer blocks ends with any numbers of blocks.
        lengths: ``(batch,)``, the tokens of each sequence, those of ``q`` included.
    """
    seq, (block_size, kv_heads) = q.shape[2], keys.shape[1:3]
    wide = torch.promote_types(q.dtype, torch.float32)
    scaled = q.unflatten(1, (kv_heads, -1)).to(wide) / q.shape[-1] ** 0.5
    # scaled: (batch, kv_heads, group, seq, size), where a group of query heads shares a head of keys and values
    last = lengths[:, None] - seq + torch.arange(seq, device=q.device)  # (batch, seq): seen up to here
    found = no_keys(scaled)
    for i in range(tables.shape[1]):
        k, v = (x[tables[:, i]].to(wide).transpose(1, 2) for x in (keys, values))
        # k, v: (batch, kv_heads, block_size, size)
        place = torch.arange(i * block_size, (i + 1) * block_size, device=q.device)
        hidden = place > last[..., None]  # (batch, seq, block_size)
        unused = place >= lengths[:, None]  # (batch, block_size)
        scores = (scaled @ k[:, :, None].mT).masked_fill(hidden[:, None, None], -torch.inf)
        v = v.masked_fill(unused[:, None, :, None], 0)[:, :, None]
        found = merge(found, attend(scores, v))
    return found.output().flatten(1, 2).to(q.dtype)  # (batch, heads, seq, size)
