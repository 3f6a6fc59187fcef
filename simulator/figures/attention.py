"""Attention and its memories (chapters 15 and 16)."""

from __future__ import annotations

from simulator.figures.figure import Figure, Slider
from simulator.predict.attention_io import ROW, standard_forward, total_bytes

TOKENS, SIZE, ITEMSIZE = 8, 2, 2  # a sequence, the size of its head, bytes of a number
SIDES = (1, 2, 4, 8)
VALUES = [2, 5, 1, 4, 3, 1, 6, 2]  # of each key the first of its value's numbers
REQUESTS = [(10, 9, 0), (9, 14, 0), (11, 8, 2), (10, 12, 3), (3, 10, 5)]  # prompt, answer, and when it comes


def explore_tiles(block_q: int = 4, block_k: int = 2) -> Figure:
    """FlashAttention's forward, tile by tile: scores, each query's running m, l and o, and the bytes moved.

    One head of size 2, 8 tokens in 16 bits, with made-up scores and values: small enough to be seen whole. Of V and o
    the first of two numbers is drawn. Bytes are those of ``flash_forward`` (version 2) and ``standard_forward``.

    Args:
        block_q, block_k: queries and keys of a tile; 1, 2, 4 or 8.
    """
    return Figure(
        "tiles",
        "Tiles of attention",
        [
            Slider("block_q", block_q, SIDES, "queries in a tile"),
            Slider("block_k", block_k, SIDES, "keys in a tile"),
        ],
        shown=2,
        scores=[[(5 * i + 3 * j) % 13 // 2 - 1 for j in range(TOKENS)] for i in range(TOKENS)],
        v=VALUES,
        size=SIZE,
        itemsize=ITEMSIZE,
        row=ROW,
        standard=total_bytes(standard_forward(TOKENS, SIZE, itemsize=ITEMSIZE)),
    )


def explore_kv_blocks(block_size: int = 4, share: bool = False) -> Figure:
    """Blocks of a KV cache of 48 slots, step by step: five requests come, grow, take blocks and give them back.

    Who gets which block is as in ``serve_in_blocks``. The first four requests begin with the same 8 tokens.

    Args:
        block_size: slots in a block; 2, 4, 8 or 16.
        share: a request that comes in takes the full blocks of the common beginning from one that has them.
    """
    return Figure(
        "kv_blocks",
        "Blocks of a KV cache",
        [
            Slider("block_size", block_size, (2, 4, 8, 16), "slots in a block"),
            Slider("share", share, (False, True), "share the common beginning of A to D"),
        ],
        requests=REQUESTS,
        slots=48,
        family=4,
        common=8,
    )
