"""Ranks that a user starts one by one: ``--world 2 --rank 0`` in one terminal, ``--world 2 --rank 1`` in another.

Each process says of itself what torchrun would have said, so from here on it is one of torchrun's ranks.
"""

from __future__ import annotations

import os
import signal

import click

LOCAL = ("localhost", "127.0.0.1")
TERMINALS = "terminals"
ADDRESS = "127.0.0.1:29500"


def check_rank(world: int | None, rank: int, address: str) -> tuple[str, int]:
    """Host and port of rank 0.

    Raises:
        ValueError: one sentence, if no rank can begin like this.
    """
    if world is None:
        raise ValueError("--rank needs --world, the number of ranks in all")
    if rank >= world:
        raise ValueError(f"--rank must be from 0 to {world - 1} with --world {world}, not {rank}")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ValueError(f"torchrun has numbered its ranks itself: leave out --rank {rank}")
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"--address must be HOST:PORT, such as {ADDRESS}, not {address}")
    return host, int(port)


def become_rank(world: int, rank: int, address: str) -> None:
    """Set what torchrun sets. Ranks of other hosts are taken to be alone on theirs."""
    host, port = check_rank(world, rank, address)
    here = host in LOCAL
    os.environ |= {
        "TORCHELASTIC_RUN_ID": TERMINALS,
        "WORLD_SIZE": str(world),
        "RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world if here else 1),
        "LOCAL_RANK": str(rank if here else 0),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


def started_by_hand() -> bool:
    return os.environ.get("TORCHELASTIC_RUN_ID") == TERMINALS


def meet(world: int) -> None:
    """Wait until all ranks have come. Ctrl-C ends the process at once: while PyTorch waits, no Python runs."""
    from course_lib.runtime import launch  # imports torch

    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.environ["RANK"] == "0" and world > 1:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        others = ", ".join(map(str, range(1, world)))
        click.echo(f"waiting at {where} for --rank {others}", err=True)
    launch(_nothing, world)
    signal.signal(signal.SIGINT, before)


def _nothing() -> None:
    pass
