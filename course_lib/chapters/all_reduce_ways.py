"""What ways to give all ranks a sum take for a gradient and for a loss, told in a table (chapter 04)."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.observe.show.shown import Shown, headed
from course_lib.observe.show.tables import table
from simulator.inputs.hardware import Hardware, Link
from simulator.predict.collective_time import all_reduce_rounds, all_reduce_seconds, collective_seconds

RANKS = 1000
SIZES = {"1 GB": 1e9, "4 bytes": 4}


def price_ways(ways: Sequence[str], link: Link, unknown: str = "") -> Shown:
    """A row for each way: its rounds, and how long it takes for each of ``SIZES``.

    Args:
        unknown: a way whose last time is left open; then no rounds are told either.
    """
    rows = []
    for way in ways:
        times = [_told(all_reduce_seconds(way, size, RANKS, link)) for size in SIZES.values()]
        if way == unknown:
            times[-1] = "?"
        rows.append([way, *([] if unknown else [all_reduce_rounds(way, RANKS)]), *times])
    more = _told(link.seconds(1e9, 0))
    return headed(
        f"A message takes {1e6 * link.latency:.0f} µs, and {more} more for each GB.",
        table(["", *([] if unknown else ["rounds"]), *SIZES], rows),
    )


def price_levels(ways: Sequence[str], link: Link, hardware: Hardware) -> Shown:
    """The rows of ``price_ways``, and one more: a ring inside every machine, then rings over the machines."""
    rows = [
        [way, all_reduce_rounds(way, RANKS)]
        + [_told(all_reduce_seconds(way, size, RANKS, link)) for size in SIZES.values()]
        for way in ways
    ]
    each = hardware.node_size
    rounds = 2 * (each - 1) + all_reduce_rounds("ring", RANKS // each)
    times = [_told(by_levels(size, hardware)) for size in SIZES.values()]
    return table(["", "rounds", *SIZES], [*rows, ["rings by levels", rounds, *times]])


def by_levels(size: float, hardware: Hardware) -> float:
    """Seconds: reduce-scatter in every machine, all-reduce of each of its chunks over machines, all-gather.

    One after another. The chunks of a machine travel at once, each through its own network card.
    """
    each = hardware.node_size
    inside = [collective_seconds(name, size, each, 1, hardware) for name in ("reduce-scatter", "all-gather")]
    over = all_reduce_seconds("ring", size / each, RANKS // each, hardware.network)
    return sum(inside) + over


def _told(seconds: float) -> str:
    """Two digits: ``"0.12 ms"``, ``"62 ms"``, ``"50 s"``."""
    size, unit = (seconds, "s") if seconds >= 1 else (1e3 * seconds, "ms")
    return f"{size:.2g} {unit}" if size < 10 else f"{size:.0f} {unit}"
