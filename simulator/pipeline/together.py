"""How long a forward and a backward take that run at once: while one waits for messages, the other computes."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.inputs.checks import amounts


def seconds_together(*work: Sequence[float]) -> float:
    """The makespan of pieces of work that share one device, which computes for one of them at a time, and one link,
    which carries the messages of one at a time (DualPipe, arXiv:2412.19437, section 3.2.1).

    >>> seconds_together([1, 2, 1], [1, 2, 1])  # one after the other: 8
    6.0

    Args:
        work: of each piece its seconds of computing and of messages in turn: it computes, waits, computes …
    """
    for each in work:
        amounts(work=each)
    ready, at, free = [0.0] * len(work), [0] * len(work), [0.0, 0.0]
    while left := [i for i, each in enumerate(work) if at[i] < len(each)]:
        i = min(left, key=lambda i: max(ready[i], free[at[i] % 2]))  # who can go on first
        busy = at[i] % 2
        ready[i] = free[busy] = max(ready[i], free[busy]) + work[i][at[i]]
        at[i] += 1
    return max(ready, default=0.0)
