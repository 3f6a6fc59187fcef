"""Chapter 00's check of the step that the reader mends: each rank judges what it has got."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

LAYER_1, LAYER_2 = [10, 11, 12, 13], [20, 21, 22, 23]


def judge(step: Callable[[], object]) -> None:
    """Call the step, which returns what rank 0 logs and layer 2, and print "right", or what is wrong on this rank.

    It sends nothing itself: where ranks do not wait for each other, a message of its own would meet one of theirs.
    """
    print(verdict(dist.get_rank(), step()))


def verdict(rank: int, returned: object) -> str:
    """What is wrong with what a rank's step has returned, if anything is, and what is wanted of it."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        return "wrong: step returns the log and layer 2"
    log, layer_2 = returned
    wanted = f"wanted: layer 2 {LAYER_2}, log {None if rank else LAYER_1}"
    if layer_2 != LAYER_2:
        return f"wrong: layer 2 is {layer_2}; {wanted}"
    if not rank and log != LAYER_1:
        return f"wrong: the log is {log}; {wanted}"
    return "right"
