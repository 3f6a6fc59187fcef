"""Likely mistakes of exercise 04.4, as programs: the size that each gives for ring and tree to take equally long."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from simulator.inputs.hardware import Link


def known(
    got: float, ranks: int, link: Link, sizes: Mapping[str, Sequence[float]]
) -> dict[str, Callable[[], float]]:
    """Every mistake's program, for an answer that gave ``got`` after measuring at these sizes.

    Where a mistake can be made in several ways, the nearest counts. What is near only because both are a part of a byte
    is made something else.
    """

    def nearest(found: Sequence[float]) -> float:
        return min(found, key=lambda size: abs(size - got))

    def near(value: float) -> float:
        return value if abs(got - value) <= 1e-3 * abs(value) else -math.inf

    programs = {
        text: lambda program=program: near(program(ranks, link)) for text, program in CROSSOVER.items()
    }
    several = {
        LATENCY_IN_A_SLOPE: latency_in_the_slopes(ranks, link, sizes),
        POWER_OF_TWO: as_on_a_power_of_two(ranks, link),
    }
    return programs | {text: lambda found=found: near(nearest(found)) for text, found in several.items()}


def _lines(ranks: int, link: Link) -> tuple[float, float, float, float]:
    """Seconds of tree and ring at 0 bytes, and seconds a byte."""
    levels = (ranks - 1).bit_length()
    tree, ring = 2 * levels * link.latency, 2 * (ranks - 1) * link.latency
    return tree, ring, 2 * levels / link.rate, 2 * (ranks - 1) / ranks / link.rate


def _turned_round(ranks: int, link: Link) -> float:
    tree, ring, tree_slope, ring_slope = _lines(ranks, link)
    return (ring - tree) / (ring_slope - tree_slope)


def _upside_down(ranks: int, link: Link) -> float:
    tree, ring, tree_slope, ring_slope = _lines(ranks, link)
    return (tree_slope - ring_slope) / (ring - tree)


def _slopes_added(ranks: int, link: Link) -> float:
    tree, ring, tree_slope, ring_slope = _lines(ranks, link)
    return (ring - tree) / (tree_slope + ring_slope)


def _heights_added(ranks: int, link: Link) -> float:
    tree, ring, tree_slope, ring_slope = _lines(ranks, link)
    return (ring + tree) / (tree_slope - ring_slope)


def _only_the_tree_slope(ranks: int, link: Link) -> float:
    tree, ring, tree_slope, _ = _lines(ranks, link)
    return (ring - tree) / tree_slope


def _latency_times_rate(ranks: int, link: Link) -> float:
    return link.latency * link.rate


def latency_in_the_slopes(ranks: int, link: Link, sizes: Mapping[str, Sequence[float]]) -> list[float]:
    """The time at the largest size divided by that size, taken for the slope of one line or of both."""
    tree, ring, tree_slope, ring_slope = _lines(ranks, link)
    more = [height / max([1.0, *sizes[name]]) for name, height in (("tree", tree), ("ring", ring))]
    slopes = [tree_slope + a * more[0] - ring_slope - b * more[1] for a, b in ((1, 1), (0, 1), (1, 0))]
    return [(ring - tree) / slope for slope in slopes]


def as_on_a_power_of_two(ranks: int, link: Link) -> list[float]:
    """The formula with the power of two that fits the times at 0 bytes best, and each line's latency and rate."""
    tree, ring, tree_slope, ring_slope = _lines(ranks, link)
    levels = min(range(1, 40), key=lambda k: abs((2**k - 1) / k - ring / tree))
    p = 2**levels
    latencies = ring / (2 * (p - 1)), tree / (2 * levels)
    rates = 2 * (p - 1) / p / ring_slope, 2 * levels / tree_slope
    return [a * b * (p - 1 - levels) / (levels - (p - 1) / p) for a in latencies for b in rates]


CROSSOVER: dict[str, Callable[[int, Link], float]] = {
    "when the difference of the times at 0 bytes and that of the slopes have opposite signs": _turned_round,
    "when the difference of the slopes is divided by that of the times at 0 bytes": _upside_down,
    "when the slopes are added and not subtracted": _slopes_added,
    "when the times at 0 bytes are added and not subtracted": _heights_added,
    "when the time of the ring is taken to be the same for every size": _only_the_tree_slope,
    "when latency and transfer of one message are made equal": _latency_times_rate,
}
POWER_OF_TWO = "when the number of ranks is taken for a power of two"
LATENCY_IN_A_SLOPE = "when a slope is a time divided by its size, so that it still contains the latency"
