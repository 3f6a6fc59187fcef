"""LoRA's rank and alpha (chapter 17)."""

from __future__ import annotations

import random

from simulator.figures.figure import Figure, Slider

SIDE = 16  # rows and columns of the matrix in the picture
RANKS = (1, 2, 4, 8, 16)


def explore_rank(r: int = 4, alpha: float = 16) -> Figure:
    """LoRA's change of a matrix of 16 x 16 as a picture: B, A, their product, the numbers trained, and the factor.

    The numbers in A and B are drawn at random, as an example.

    Args:
        r: columns of B and rows of A, 1 to 16.
        alpha: the factor's numerator, 1 to 64.
    """
    draw = random.Random(0)
    numbers = [[[round(draw.gauss(0, 1), 2) for _ in range(SIDE)] for _ in range(SIDE)] for _ in range(2)]
    return Figure(
        "rank",
        "Rank and alpha",
        [
            Slider("r", r, RANKS, "r"),
            Slider("alpha", alpha, [2**k for k in range(7)], "alpha"),
        ],
        A=numbers[0],
        B=numbers[1],
    )
