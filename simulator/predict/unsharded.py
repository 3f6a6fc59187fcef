"""Parameters over time under FSDP (arXiv:2304.11277): the shards all the time, and the units that are whole."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.inputs.checks import amounts, at_least, not_negative, refuse
from simulator.ledgers.memory import MemoryBreakdown, MemoryHistory


def unsharded_history(
    unit_bytes: Sequence[float],
    *,
    ranks: int,
    root_bytes: float = 0,
    prefetch: int = 1,
    reshard: bool = True,
) -> MemoryHistory:
    """Bytes of parameters on one rank while each unit computes, in the order of one step.

    Time counts computations, not seconds. Shards are ``parameters``; what is gathered lies in ``buffers``.

    Args:
        unit_bytes: bytes of each unit, whole, in the order of forward.
        ranks: that share one copy of the model (the sharding factor).
        root_bytes: of what is in no unit. It is whole from the beginning of forward to the end of backward.
        prefetch: units gathered ahead.
        reshard: drop a unit after its forward, and gather it again for its backward.

    Returns:
        Entries ``""`` (before), ``"forward block 0"``…, ``"backward block 0"``, ``""`` (after).
    """
    amounts(unit_bytes=unit_bytes)
    if not len(unit_bytes):
        refuse("unit_bytes", "a list of at least one unit", list(unit_bytes))
    at_least(1, ranks=ranks)
    at_least(0, prefetch=prefetch)
    not_negative(root_bytes=root_bytes)
    shards = (sum(unit_bytes) + root_bytes) / ranks
    alive: set[int] = set()
    held, names = [MemoryBreakdown(parameters=shards)], [""]

    def run(phase: str, units: Sequence[int], frees: bool) -> None:
        for place, unit in enumerate(units):
            alive.update(units[place : place + prefetch + 1])
            whole = root_bytes + sum(unit_bytes[u] for u in alive)
            held.append(MemoryBreakdown(parameters=shards, buffers=whole))
            names.append(f"{phase} block {unit}")
            if frees:
                alive.remove(unit)

    order = range(len(unit_bytes))
    run("forward", order, frees=reshard)
    run("backward", order[::-1], frees=True)
    held.append(held[0])
    return MemoryHistory(0, tuple(range(len(held))), tuple(held), (*names, ""), len(held))
