"""Bytes that attention moves between a device's slow memory (HBM) and its fast one (SRAM and registers).

Standard attention writes the N x N scores and reads them back, once for every operator. FlashAttention (version 1:
arXiv:2205.14135, algorithms 1 and 4) keeps a tile of them in fast memory and moves Q, K, V and O, some of them several
times: the fewer, the larger the tiles are, so with a fast memory of M numbers it moves Theta(N^2 d^2 / M). Version 2
(arXiv:2307.08691) has the other loop outside: a block of queries stays, and blocks of keys pass by.

A table of moved bytes has one entry for each operator or tensor. Letters: ``N`` the length, ``d`` the size of a head.
Caches between the two memories are left out: what is loaded twice is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from simulator.inputs.checks import at_least, one_of, yes_or_no

ROW = 4  # bytes of a number that is kept for a row (m, l, L, D), and of what is added up in fast memory: fp32
VERSIONS = (1, 2)


class Moved(NamedTuple):
    """Bytes ``read`` from slow memory and ``written`` to it."""

    read: int
    written: int


def total_bytes(*tables: Mapping[str, Moved]) -> int:
    """All bytes of one table or more."""
    return sum(moved.read + moved.written for table in tables for moved in table.values())


# ---- standard attention: every operator reads and writes slow memory ----------------------------------------


def standard_forward(
    length: int, size: int, *, heads: int = 1, itemsize: int = 2, masked: bool = False, dropout: bool = False
) -> dict[str, Moved]:
    """By operator, of ``heads`` heads in all (those of every sequence of the batch).

    Args:
        masked: an operator of its own adds a mask to the scores; the mask, one for all heads, is not counted.
        dropout: an operator of its own drops weights, and keeps one byte for each as its mask.
    """
    at_least(1, length=length, size=size, heads=heads, itemsize=itemsize)
    yes_or_no(masked=masked, dropout=dropout)
    x, scores, dropped = _sizes(length, size, heads, itemsize)
    table = {"S = Q K^T": Moved(2 * x, scores)}
    if masked:
        table["mask"] = Moved(scores, scores)
    table["P = softmax(S)"] = Moved(scores, scores)
    if dropout:
        table["dropout"] = Moved(scores, scores + dropped)
    return table | {"O = P V": Moved(scores + x, x)}


def standard_backward(
    length: int, size: int, *, heads: int = 1, itemsize: int = 2, dropout: bool = False
) -> dict[str, Moved]:
    """By operator. Adding a mask has no backward: the gradient passes as it is."""
    at_least(1, length=length, size=size, heads=heads, itemsize=itemsize)
    yes_or_no(dropout=dropout)
    x, scores, dropped = _sizes(length, size, heads, itemsize)
    table = {"dV = P^T dO": Moved(scores + x, x), "dP = dO V^T": Moved(2 * x, scores)}
    if dropout:
        table["dropout's backward"] = Moved(scores + dropped, scores)
    return table | {
        "dS from P and dP": Moved(2 * scores, scores),
        "dQ = dS K": Moved(scores + x, x),
        "dK = dS^T Q": Moved(scores + x, x),
    }


def _sizes(length: int, size: int, heads: int, itemsize: int) -> tuple[int, int, int]:
    """Bytes of one of Q, K, V and O, of the scores, and of a dropout mask."""
    return itemsize * heads * length * size, itemsize * heads * length**2, heads * length**2


# ---- FlashAttention: tiles of block_q queries and block_k keys ----------------------------------------------


def flash_forward(
    length: int,
    size: int,
    block_q: int,
    block_k: int,
    *,
    heads: int = 1,
    itemsize: int = 2,
    causal: bool = False,
    version: int = 2,
) -> dict[str, Moved]:
    """By tensor. ``causal``: tiles above the diagonal are not visited.

    Version 1 keeps a block of keys, and for each of them reads and writes O and the two numbers of each row again (once
    it has written zeros to O and l, and -inf to m). Version 2 keeps a block of queries and writes O and L once.
    """
    _check(length, size, block_q, block_k, heads, itemsize, causal, version)
    rows, keys = _visits(length, block_q, block_k, causal)
    e, n = itemsize * heads * size, length  # e: bytes of one token's share of Q, K, V or O
    if version == 2:
        return {
            "Q": Moved(e * n, 0),
            "K": Moved(e * keys, 0),
            "V": Moved(e * keys, 0),
            "O": Moved(0, e * n),
            "L": Moved(0, ROW * heads * n),
        }
    number = Moved(ROW * heads * rows, ROW * heads * (rows + n))
    return {
        "K": Moved(e * n, 0),
        "V": Moved(e * n, 0),
        "Q": Moved(e * rows, 0),
        "O": Moved(e * rows, e * (rows + n)),
        "l": number,
        "m": number,
    }


def flash_backward(
    length: int,
    size: int,
    block_q: int,
    block_k: int,
    *,
    heads: int = 1,
    itemsize: int = 2,
    causal: bool = False,
    version: int = 2,
) -> dict[str, Moved]:
    """By tensor. Version 1 keeps a block of keys with dK and dV, and adds to dQ in slow memory.

    Version 2 is that of our Triton kernels: D = rowsum(dO O) first; then a pass for dK and dV, in which a block of keys
    stays; then one for dQ, in which a block of queries stays. It adds up nothing in slow memory.
    """
    _check(length, size, block_q, block_k, heads, itemsize, causal, version)
    rows, keys = _visits(length, block_q, block_k, causal)
    e, n, row = itemsize * heads * size, length, ROW * heads
    if version == 2:
        return {
            "Q": Moved(e * (rows + n), 0),
            "K": Moved(e * (n + keys), 0),
            "V": Moved(e * (n + keys), 0),
            "O": Moved(e * n, 0),
            "dO": Moved(e * (n + rows + n), 0),
            "L": Moved(row * (rows + n), 0),
            "D": Moved(row * (rows + n), row * n),
            "dK": Moved(0, e * n),
            "dV": Moved(0, e * n),
            "dQ": Moved(0, e * n),
        }
    return {
        "K": Moved(e * n, 0),
        "V": Moved(e * n, 0),
        "Q": Moved(e * rows, 0),
        "O": Moved(e * rows, 0),
        "dO": Moved(e * rows, 0),
        "l": Moved(row * rows, 0),
        "m": Moved(row * rows, 0),
        "dQ": Moved(e * rows, e * (rows + n)),  # zeros first
        "dK": Moved(0, e * n),
        "dV": Moved(0, e * n),
    }


def _check(
    length: int, size: int, block_q: int, block_k: int, heads: int, itemsize: int, causal: bool, version: int
) -> None:
    at_least(1, length=length, size=size, block_q=block_q, block_k=block_k, heads=heads, itemsize=itemsize)
    yes_or_no(causal=causal)
    at_least(1, version=version)
    one_of("version", version, VERSIONS)


def _visits(length: int, block_q: int, block_k: int, causal: bool) -> tuple[int, int]:
    """Tokens loaded on the inner side: rows, summed over the blocks of keys, and keys, over the blocks of queries."""
    if not causal:
        return length * ceil(length / block_k), length * ceil(length / block_q)
    rows = sum(length - start // block_q * block_q for start in range(0, length, block_k))
    ends = (min(start + block_q, length) for start in range(0, length, block_q))
    return rows, sum(min(length, ceil(end / block_k) * block_k) for end in ends)


# ---- the fast memory decides how large a tile can be --------------------------------------------------------


def flash_fast_bytes(block_q: int, block_k: int, size: int, *, itemsize: int = 2) -> int:
    """What version 2's forward holds at once: tiles of Q, K and V, and in fp32 those of O and S and three numbers a row
    (m, its next value, and l)."""
    at_least(1, block_q=block_q, block_k=block_k, size=size, itemsize=itemsize)
    inputs = itemsize * size * (block_q + 2 * block_k)
    return inputs + ROW * (block_q * size + block_q * block_k + 3 * block_q)


def best_blocks(
    length: int, size: int, fast_bytes: int, *, itemsize: int = 2, multiple: int = 16
) -> tuple[int, int]:
    """(block_q, block_k) that fit into ``fast_bytes`` and with which version 2's forward moves the fewest bytes.

    Of blocks that move equally many the larger tile is taken. Tensor cores want sides that are multiples of 16.

    Raises:
        ValueError: not even one tile of ``multiple`` x ``multiple`` fits.
    """
    at_least(1, length=length, size=size, fast_bytes=fast_bytes, itemsize=itemsize, multiple=multiple)
    best: tuple[tuple[int, int], int, int] | None = None
    longest = ceil(length / multiple) * multiple
    for block_q in range(multiple, longest + 1, multiple):
        fixed = flash_fast_bytes(block_q, 1, size, itemsize=itemsize)
        one_more = 2 * itemsize * size + ROW * block_q  # bytes of one more key in the tile
        block_k = min(longest, ((fast_bytes - fixed) // one_more + 1) // multiple * multiple)
        if block_k < multiple:
            break  # more queries leave room for fewer keys still
        moved = total_bytes(flash_forward(length, size, block_q, block_k, itemsize=itemsize))
        found = (moved, -block_q * block_k), block_q, block_k
        best = min(best, found) if best else found
    if best is None:
        least = flash_fast_bytes(multiple, multiple, size, itemsize=itemsize)
        raise ValueError(f"fast bytes must be at least {least} for one tile, not {fast_bytes}")
    return best[1:]


def paper_blocks(size: int, fast_elements: int) -> tuple[int, int]:
    """(B_r, B_c) of algorithm 1 for a fast memory of M numbers: B_c = ceil(M / 4d), B_r = min(B_c, d)."""
    at_least(1, size=size, fast_elements=fast_elements)
    keys = ceil(fast_elements / (4 * size))
    return min(keys, size), keys


# ---- how many operations for a byte -------------------------------------------------------------------------


def attention_flops(length: int, size: int, *, heads: int = 1, causal: bool = False) -> dict[str, int]:
    """``forward``: two products; ``backward``: FlashAttention's five. A causal mask leaves (N + 1) / 2N of them."""
    at_least(1, length=length, size=size, heads=heads)
    yes_or_no(causal=causal)
    scores = heads * (length * (length + 1) // 2 if causal else length**2)
    return {"forward": 4 * scores * size, "backward": 10 * scores * size}
