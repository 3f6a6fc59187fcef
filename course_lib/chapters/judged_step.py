"""Chapter 00's check of the step that the reader mends: each rank judges what it has printed."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stdout

import torch.distributed as dist

LAYERS = {"layer 1": "10, 11, 12, 13", "layer 2": "20, 21, 22, 23"}


class Heard(io.StringIO):
    """What is printed, which goes on to where it would have gone, as it comes: a rank that hangs says no more."""

    def __init__(self, on: io.TextIOBase) -> None:
        super().__init__()
        self.on = on

    def write(self, text: str) -> int:
        self.on.write(text)
        return super().write(text)


def judge(step: Callable[[], object]) -> None:
    """Call the step, and print what this rank finds: "mended", or what is wrong.

    It sends nothing itself: where ranks do not wait for each other, a message of its own would meet one of theirs.
    """
    heard = Heard(sys.stdout)  # pyright: ignore[reportArgumentType]  # a rank's own is no TextIOBase by its type
    with redirect_stdout(heard):
        step()
    print(verdict(dist.get_rank(), heard.getvalue().splitlines()))


def verdict(rank: int, lines: list[str]) -> str:
    """What is wrong with these lines of a rank, if anything is."""
    log = [line for line in lines if "log" in line]
    if rank and log:
        return "wrong: only rank 0 writes the log"
    if not rank and not any(LAYERS["layer 1"] in line for line in log):
        return f"wrong: the log lacks layer 1, {LAYERS['layer 1']}"
    if not any(LAYERS["layer 2"] in line for line in lines if line not in log):
        return f"wrong: layer 2 is not {LAYERS['layer 2']}"
    return "mended"
