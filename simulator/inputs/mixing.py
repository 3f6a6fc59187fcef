"""Mixing matrices: who averages with whom in decentralised training, as data.

In row i of a matrix W stand the shares with which rank i adds up the weights of all ranks:
x_i <- sum over j of W[i][j] x_j. W is doubly stochastic: no entry is negative, and every row and every column adds
up to 1. Then the mean of all ranks' weights stays what it was (D-PSGD, arXiv:1705.09056).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from simulator.inputs.checks import at_least, is_number, refuse

Matrix = Sequence[Sequence[float]]  # p rows of p shares


def ring_matrix(ranks: int) -> Matrix:
    """Each rank averages with its two neighbours in a ring: 1/3 each. With two ranks, 1/2 each.

    >>> ring_matrix(2)
    ((0.5, 0.5), (0.5, 0.5))
    """
    at_least(1, ranks=ranks)
    near = [sorted({(i - 1) % ranks, i, (i + 1) % ranks}) for i in range(ranks)]
    return tuple(tuple(1 / len(n) if j in n else 0.0 for j in range(ranks)) for n in near)


def pair_matrix(ranks: int, step: int, seed: int = 0) -> Matrix:
    """Pairs drawn anew in each step: 1/2 each. Of an odd number one rank stays alone.

    The same seed gives all ranks the same pairs, without a message.
    """
    at_least(1, ranks=ranks)
    at_least(0, step=step, seed=seed)
    order = list(range(ranks))
    random.Random(f"{seed} {step}").shuffle(order)
    partner = list(range(ranks))
    for a, b in zip(order[::2], order[1::2], strict=False):
        partner[a], partner[b] = b, a
    return tuple(tuple(((i == j) + (partner[i] == j)) / 2 for j in range(ranks)) for i in range(ranks))


def check_matrix(matrix: Matrix, ranks: int | None = None) -> None:
    """Refuse what is not doubly stochastic, or not a matrix for ``ranks`` ranks."""
    p = len(matrix) if hasattr(matrix, "__len__") and not isinstance(matrix, str) else 0
    if not p or any(not hasattr(row, "__len__") or len(row) != p for row in matrix):
        refuse("the mixing matrix", "as many rows as columns, at least one", matrix)
    if ranks is not None:
        at_least(1, ranks=ranks)
    if ranks is not None and p != ranks:
        refuse("the mixing matrix", f"a row and a column for each of the {ranks} ranks", f"{p} rows")
    for entry in (entry for row in matrix for entry in row):
        if not (is_number(entry) and 0 <= entry <= 1):
            refuse("each share of the mixing matrix", "between 0 and 1", entry)
    for what, lines in (("row", matrix), ("column", list(zip(*matrix, strict=True)))):
        for i, line in enumerate(lines):
            if abs(sum(line) - 1) > 1e-9:
                refuse(f"the sum of {what} {i} of the mixing matrix", "1", sum(line))
