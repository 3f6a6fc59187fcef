"""How much of a gradient a compressed exchange keeps: asked by the methods and by the predictions of their traffic."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from simulator.inputs.checks import at_least, part, positive


def kept(density: float, elements: int) -> int:
    """How many of ``elements`` a sparse method sends: the ``density`` part, rounded, but at least one.

    >>> kept(0.01, 1000), kept(0.01, 10)
    (10, 1)
    """
    part(density=density)
    at_least(1, elements=elements)
    return max(1, round(density * elements))


def low_rank(shape: Sequence[int], matrix_rank: int, min_compression: float = 2) -> int:
    """The rank r with which PowerSGD (arXiv:1905.13727) sends a gradient of this shape; 0: it is sent as it is.

    A gradient is a matrix of ``shape[0]`` rows. Its two thin matrices have (n + m) r elements. That must be less than
    n m by a factor of more than ``min_compression``. A vector is never compressed.

    >>> low_rank((100, 50), 4), low_rank((100,), 4), low_rank((8, 8), 4)
    (4, 0, 0)
    """
    at_least(1, matrix_rank=matrix_rank, **{f"side_{i}": side for i, side in enumerate(shape)})
    positive(min_compression=min_compression)
    if len(shape) < 2:
        return 0
    n, m = shape[0], prod(shape[1:])
    r = min(n, m, matrix_rank)
    return r if (n + m) * r * min_compression < n * m else 0


def fragment_steps(every: int, fragments: int) -> list[int]:
    """After which step of a round of ``every`` steps each fragment is averaged: spread evenly, the last one at its end.

    >>> fragment_steps(10, 4)
    [3, 5, 8, 10]
    """
    at_least(1, every=every, fragments=fragments)
    return [-(-(i + 1) * every // fragments) for i in range(fragments)]
