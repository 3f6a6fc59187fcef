"""Parameters over time under FSDP (arXiv:2304.11277): the shards all the time, and the units that are whole."""

from __future__ import annotations

from collections.abc import Sequence

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
    if not unit_bytes or min(unit_bytes) < 0 or ranks < 1 or prefetch < 0:
        raise ValueError(
            "unsharded_history needs at least one unit, of 0 bytes or more, at least 1 rank and a prefetch of "
            f"0 or more, not {list(unit_bytes)}, {ranks} and {prefetch}"
        )
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
