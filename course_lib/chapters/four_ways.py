"""Four ways to give all ranks a sum: who sends how much to whom, through which card, and how long it takes (chapter
04)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table
from simulator.inputs.checks import at_least, one_of
from simulator.inputs.hardware import Hardware
from simulator.predict.collective_time import all_reduce_rounds, all_reduce_seconds, group_link

WAYS = ("naive", "tree", "direct", "ring")


class Sent(NamedTuple):
    """In tensors.

    Attributes:
        rank: by the rank that sends most.
        together: by all ranks.
    """

    rank: float
    together: float


def messages(way: str, ranks: int) -> Iterator[tuple[int, int, float]]:
    """(sender, receiver, tensors that it sends there in all), as in ``course_lib.runtime.collectives``."""
    one_of("way", way, WAYS)
    at_least(2, ranks=ranks)
    if way == "ring":
        yield from ((r, (r + 1) % ranks, 2 * (ranks - 1) / ranks) for r in range(ranks))
    if way == "direct":
        yield from ((r, to, 2 / ranks) for r in range(ranks) for to in range(ranks) if to != r)
    distance = 1
    while distance < ranks and way in ("naive", "tree"):
        for low in range(1 if way == "naive" else min(distance, ranks - distance)):
            yield low + distance, low, 1  # an addend, towards the root
            yield low, low + distance, 1  # the sum, back
        distance = distance + 1 if way == "naive" else 2 * distance


def sent(way: str, ranks: int) -> Sent:
    """What an all-reduce sends."""
    by_rank = defaultdict[int, float](float)
    for sender, _, part in messages(way, ranks):
        by_rank[sender] += part
    return Sent(max(by_rank.values()), sum(by_rank.values()))


def through_cards(way: str, ranks: int, each: int, rings: int = 1) -> list[float]:
    """Tensors that each rank of the first machine sends out of it, through its own card.

    Args:
        each: ranks of a machine, which stand in it in their order.
        rings: so many at once, each with its part of the tensor; in each ring another rank is a machine's last.
    """
    at_least(1, each=each, rings=rings)
    if ranks % each:
        raise ValueError(f"{ranks} ranks do not fill machines of {each}")
    out = [0.0] * each
    for turn in range(rings):
        for sender, receiver, part in messages(way, ranks):
            if sender < each <= receiver:
                out[(sender + turn) % each] += part / rings
    return out


def price_ways(ranks: int, small: float, large: float, device: Hardware) -> Shown:
    """A row for each way but the naive: its rounds, and the milliseconds for ``small`` and for ``large`` bytes.

    Directly, each rank sends its chunks through its own card. Trees and rings are cut, one for each card of a machine.
    """
    card, machine, each = device.network, group_link(ranks, 1, device), device.node_size
    ways = {
        f"{each} trees": ("tree", machine),
        "direct": ("ring", card),
        f"{each} rings": ("ring", machine),
    }
    rows = []
    for name, (way, link) in ways.items():
        times = (1e3 * all_reduce_seconds(way, size, ranks, link) for size in (small, large))
        rows.append(
            [name, all_reduce_rounds(way, ranks), *(f"{t:,.0f}" if t >= 1 else f"{t:.2f}" for t in times)]
        )
    return table(["", "rounds", f"{small:g} bytes (ms)", f"{large / 1e9:g} GB (ms)"], rows)
