"""Parameters alive under FSDP, measured: one entry for each computation of a unit, as the simulator predicts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from course_lib.data_parallel.fsdp import FSDP
from course_lib.runtime import trace
from simulator.ledgers.memory import MemoryBreakdown, MemoryHistory


@contextmanager
def record_unsharded(fsdp: FSDP) -> Iterator[Callable[[], MemoryHistory]]:
    """Note this rank's parameter bytes at the end of each unit's computation, before the unit is resharded.

    >>> with record_unsharded(fsdp) as history:                          # doctest: +SKIP
    ...     loss_of(model(x)).backward()
    >>> history().peak                                                   # doctest: +SKIP

    The type is that of the simulator's ``unsharded_history``: shards are ``parameters``, all that is unsharded or
    being gathered is in ``buffers``, and time counts computations.
    """
    shards = sum(flat.shard.untyped_storage().nbytes() for flat in fsdp.flats)
    held: list[MemoryBreakdown] = []
    names: list[str] = []

    def note(name: str) -> None:
        held.append(MemoryBreakdown(parameters=shards, buffers=fsdp.memory().parameters - shards))
        names.append(name)

    def listener(lane: str, name: str, *times: Any) -> None:
        if lane == "compute":
            note(name)
        if before is not None:
            before(lane, name, *times)

    note("")
    before = trace.listen(listener)
    try:
        yield lambda: MemoryHistory(
            dist.get_rank(), tuple(range(len(held))), tuple(held), tuple(names), len(held)
        )
    finally:
        trace.listen(before)
        note("")
