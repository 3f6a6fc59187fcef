"""How a whole is dealt out in parts that need not be equal."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.inputs.checks import amounts, at_least, refuse


def chunk_sizes(elements: int, parts: int) -> list[int]:
    """How ``elements`` are dealt into ``parts``: as evenly as possible, the longer chunks first.

    >>> chunk_sizes(10, 4)
    [3, 3, 2, 2]
    """
    at_least(1, parts=parts)
    at_least(0, elements=elements)
    short, longer = divmod(elements, parts)
    return [short + 1] * longer + [short] * (parts - longer)


def proportional_chunks(elements: int, shares: Sequence[float]) -> list[int]:
    """How ``elements`` are dealt in proportion to ``shares``: rounded down, then one more where most was cut off.

    Where the shares are whole numbers that add up to ``elements``, each part gets just its share.

    >>> proportional_chunks(10, [7, 1])
    [9, 1]
    """
    at_least(0, elements=elements)
    amounts(shares=shares)
    whole = sum(shares)
    if not whole:
        refuse("shares", "a list of numbers of which at least one is more than 0", list(shares))
    exact = [elements * share / whole for share in shares]
    sizes = [int(size) for size in exact]
    by_rest = sorted(range(len(sizes)), key=lambda i: sizes[i] - exact[i])  # of equals the first
    for i in by_rest[: elements - sum(sizes)]:
        sizes[i] += 1
    return sizes
