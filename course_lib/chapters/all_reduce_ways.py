"""What ways to give all ranks a sum take for a gradient and for a loss, told in a table (chapter 04)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from course_lib.observe.show.shown import Shown, headed
from course_lib.observe.show.tables import table
from simulator.inputs.checks import at_least
from simulator.inputs.hardware import Hardware, Link
from simulator.plots.style import human
from simulator.predict.collective_time import (
    all_reduce_rounds,
    all_reduce_seconds,
    collective_seconds,
    group_link,
)

RANKS = 1000
SIZES = {"1 GB": 1e9, "25 MB": 25e6, "4 bytes": 4}

Ways = dict[str, Callable[[float], float]]  # seconds by bytes


def price_ways(
    ways: Sequence[str], link: Link, known: Sequence[str] | None = None, tensors: bool = False
) -> Shown:
    """A row for each way: its rounds, and how long it takes for each of ``SIZES``.

    Args:
        known: where given, only the first time of these ways is told, and instead of rounds what a message takes.
        tensors: tell also how many tensors are sent one after another.
    """
    rows = []
    for way in ways:
        times = [_told(all_reduce_seconds(way, size, RANKS, link)) for size in SIZES.values()]
        if known is None:
            sent = [f"{_tensors(way, RANKS, link):.3g}"] if tensors else []
            rows.append([way, all_reduce_rounds(way, RANKS), *sent, *times])
        else:
            rows.append([way, times[0] if way in known else "?", *["?"] * (len(SIZES) - 1)])
    if known is None:
        return table(["", "rounds", *["tensors, one after another"] * tensors, *SIZES], rows)
    return headed(f"A message takes {_message(link)} more for each GB.", table(["", *SIZES], rows))


def price_borders(*ranks: int, link: Link) -> Shown:
    """For each number of ranks what a ring and a tree send, and from which size on the ring is faster."""
    at_least(4, ranks=min(ranks))  # with fewer a ring has no more rounds than a tree
    rows = [
        [
            f"{n:,}",
            *[
                told
                for way in ("ring", "tree")
                for told in (all_reduce_rounds(way, n), f"{_tensors(way, n, link):.3g}")
            ],
            human(float(f"{equal_at(*ways_of_one(link, n).values()):.2g}")),
        ]
        for n in sorted(set(ranks))
    ]
    return table(["ranks", "ring: rounds", "tensors", "tree: rounds", "tensors", "border"], rows)


def price_buckets(*buckets: int, link: Link, ranks: Sequence[int] = (RANKS, 8)) -> Shown:
    """How long so many buckets take, which go around a ring one after another and are together 1 GB."""
    rows = [
        [
            f"{count} of {human(1e9 / count)}",
            *[_told(count * all_reduce_seconds("ring", 1e9 / count, n, link)) for n in ranks],
        ]
        for count in buckets
    ]
    return table(["buckets", *[f"{n:,} ranks" for n in ranks]], rows)


def _tensors(way: str, ranks: int, link: Link) -> float:
    """Tensors that are sent one after another: what the bytes take, by what those of one tensor take."""
    least, size = (all_reduce_seconds(way, size, ranks, link) for size in (0, 1e9))
    return (size - least) * link.rate / 1e9


def ways_of_one(link: Link, ranks: int = RANKS) -> Ways:
    """One tree and one ring, in which all messages travel over ``link``."""
    return {
        f"{way} of {ranks:,} ranks": partial(all_reduce_seconds, way, ranks=ranks, link=link)
        for way in ("tree", "ring")
    }


def ways_in_machines(hardware: Hardware, ranks: int = RANKS) -> Ways:
    """As many trees and rings as a machine has ranks; a single machine has one of each, over its links.

    Args:
        ranks: at least a machine's, and no machine half full.
    """
    each = hardware.node_size
    if ranks < each or ranks % each:
        raise ValueError(f"{ranks} GPUs do not fill machines of {each}")
    tree = (
        partial(by_levels, "tree", hardware=hardware, ranks=ranks)
        if ranks > each
        else partial(all_reduce_seconds, "tree", ranks=ranks, link=hardware.node)
    )
    return {"trees": tree, "rings": partial(rings_over_all, hardware=hardware, ranks=ranks)}


def rings_over_all(size: float, hardware: Hardware, ranks: int = RANKS) -> float:
    """Seconds: rings over all ranks, each with its part, leave a machine through another network card.

    Bytes occupy a link, so the slowest one rules; latencies do not, so a chunk waits for those of its own hops.
    """
    hops = all_reduce_rounds("ring", ranks)
    between = 2 * (ranks // hardware.node_size) if ranks > hardware.node_size else 0
    latencies = between * hardware.network.latency + (hops - between) * hardware.node.latency
    return latencies + hops / ranks * size / group_link(ranks, 1, hardware).rate


def equal_at(first: Callable[[float], float], then: Callable[[float], float]) -> float:
    """Bytes from which the second way is faster, which has more latencies; the time of both grows evenly."""
    later = then(0) - first(0)
    saved = first(1e9) - first(0) - then(1e9) + then(0)
    return 1e9 * later / saved


def by_levels(algorithm: str, size: float, hardware: Hardware, ranks: int = RANKS) -> float:
    """Seconds: reduce-scatter in every machine, all-reduce of each of its chunks over machines, all-gather.

    One after another. The chunks of a machine travel at once, each through its own network card.
    """
    each = hardware.node_size
    inside = [collective_seconds(name, size, each, 1, hardware) for name in ("reduce-scatter", "all-gather")]
    over = all_reduce_seconds(algorithm, size / each, ranks // each, hardware.network)
    return sum(inside) + over


def _message(link: Link) -> str:
    """``"6 µs, and 25 ms"``: latency, and the time of 1 GB."""
    return f"{1e6 * link.latency:.0f} µs, and {_told(link.seconds(1e9, 0))}"


def _told(seconds: float) -> str:
    """Two digits: ``"0.12 ms"``, ``"62 ms"``, ``"50 s"``."""
    size, unit = (seconds, "s") if seconds >= 1 else (1e3 * seconds, "ms")
    return f"{size:.2g} {unit}" if size < 10 else f"{float(f'{size:.2g}'):.0f} {unit}"
