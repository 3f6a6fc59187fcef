"""What a step between two layouts of a tensor sends, for the four layouts that a tensor between two blocks can have."""

from __future__ import annotations

from fractions import Fraction

from simulator.inputs.checks import at_least, one_of

LAYOUTS = ("whole", "part", "slice", "sum")


def sent_by_step(before: str, after: str, ranks: int) -> Fraction | None:
    """What each of ``ranks`` ranks sends to get a tensor from one layout to another, in sizes of the whole tensor.

    None where no single step does it. The layouts are ``"whole"``; ``"part"``, a rank's own tokens; ``"slice"``, for
    every token a rank's own part of the hidden numbers; and ``"sum"``, an addend of the whole. Parts and slices of
    all ranks have the same size.
    """
    one_of("before", before, LAYOUTS)
    one_of("after", after, LAYOUTS)
    at_least(1, ranks=ranks)
    once = Fraction(ranks - 1, ranks)
    return {
        ("sum", "whole"): 2 * once,  # all-reduce
        ("sum", "part"): once,  # reduce-scatter
        ("sum", "slice"): once,
        ("part", "whole"): once,  # all-gather
        ("slice", "whole"): once,
        ("part", "slice"): once / ranks,  # all-to-all
        ("slice", "part"): once / ranks,
        ("whole", "part"): Fraction(0),  # a rank takes its part
        ("whole", "slice"): Fraction(0),
        ("part", "sum"): Fraction(0),  # a rank's part, with zeros for the others, is an addend
        ("slice", "sum"): Fraction(0),
    }.get((before, after))
