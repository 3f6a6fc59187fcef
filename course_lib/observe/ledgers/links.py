"""What a message costs here: latency and bandwidth of the links between ranks, measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from course_lib.runtime.collectives import barrier, exchange
from simulator.inputs.hardware import Link


def fastest_seconds(call: Callable[[], Any], repeats: int = 10) -> float:
    """The shortest of some runs, on this rank, of a call that every rank makes.

    All start together. The shortest, because what disturbs a run only ever makes it longer.
    """
    times = []
    for _ in range(repeats):
        barrier()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_link(size: int = 4_000_000) -> Link:
    """The link to the right neighbour, while all ranks exchange around a ring. Every rank calls it.

    Latency is the time of one byte, bandwidth that of ``size`` bytes beyond it.
    """
    me, p = dist.get_rank(), dist.get_world_size()
    seconds = []
    for count in (1, size):
        t = torch.ones(count, dtype=torch.uint8)
        seconds.append(fastest_seconds(lambda t=t: exchange(t, (me + 1) % p, t, (me - 1) % p)))
    latency, large = seconds
    return Link(latency, size / max(large - latency, 1e-9))
