"""How a whole is dealt out in parts that need not be equal."""

from __future__ import annotations


def chunk_sizes(elements: int, parts: int) -> list[int]:
    """How ``elements`` are dealt into ``parts``: as evenly as possible, the longer chunks first.

    >>> chunk_sizes(10, 4)
    [3, 3, 2, 2]
    """
    if parts < 1:
        raise ValueError(f"parts must be at least 1, not {parts}")
    if elements < 0:
        raise ValueError(f"elements must not be negative, not {elements}")
    short, longer = divmod(elements, parts)
    return [short + 1] * longer + [short] * (parts - longer)
