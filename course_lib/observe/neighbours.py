"""How much of this machine other programs used while something was measured on it."""

from __future__ import annotations

import time

import psutil


class Neighbours:
    """Counts from when it is made: the processors' busy time, less the time of this process and its threads."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), _busy_seconds(), time.process_time()

    def cores(self) -> float:
        """Processors that others kept at work until now, on average: 0 on a quiet machine."""
        wall, busy, own = (
            now - before
            for now, before in zip(
                (time.perf_counter(), _busy_seconds(), time.process_time()), self._start, strict=True
            )
        )
        return max(0.0, busy - own) / wall if wall > 0 else 0.0


def _busy_seconds() -> float:
    """Seconds that all processors together have worked since the machine started."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guest = getattr(times, "guest", 0.0) + getattr(
        times, "guest_nice", 0.0
    )  # Linux counts them as user's, too
    return sum(times) - idle - guest
