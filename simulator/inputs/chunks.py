"""How a whole is dealt out in parts that need not be equal."""

from __future__ import annotations

from simulator.inputs.checks import at_least


def chunk_sizes(elements: int, parts: int) -> list[int]:
    """How ``elements`` are dealt into ``parts``: as evenly as possible, the longer chunks first.

    >>> chunk_sizes(10, 4)
    [3, 3, 2, 2]
    """
    at_least(1, parts=parts)
    at_least(0, elements=elements)
    short, longer = divmod(elements, parts)
    return [short + 1] * longer + [short] * (parts - longer)
