"""What ``course_lib/by_hand/elastic.py`` does as a program: it loses a rank while it trains, and goes on.

Each rank is a process of its own that nobody starts again; they meet at a file. Under torchrun no rank is killed,
because torchrun ends all ranks when one is lost.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.observe.by_hand.report import show, what
from course_lib.observe.by_hand.run import (
    SEQUENCE,
    WATCHED,
    Run,
    Train,
    chosen,
    help_of,
    load_samples,
    new_model,
    one_device,
    run,
)
from course_lib.parallelize.shape import model_shape
from course_lib.runtime import RankError
from course_lib.runtime.devices import set_device
from course_lib.runtime.errors import error_of_raised, read_result
from course_lib.runtime.world import World
from simulator.inputs.plan import Plan
from simulator.predict.traffic import ddp_traffic


def main(train: Train) -> None:
    """The command line: ``--ranks``, ``--steps``, ``--batch``, and ``--lose`` a rank before step ``--at``."""
    started = int(os.environ["WORLD_SIZE"]) if dist.is_torchelastic_launched() else None

    @click.command(help=help_of(train), context_settings={"show_default": True})
    @click.option("--ranks", type=click.IntRange(2), default=started or 4, help="Processes to begin with.")
    @click.option("--steps", type=click.IntRange(WATCHED + 2), default=10, help="Training steps.")
    @click.option(
        "--batch", type=click.IntRange(1), default=24, help="Texts in a step, on all ranks together."
    )
    @click.option("--lose", type=click.IntRange(0), help="The rank that is killed.  [default: the last]")
    @click.option("--at", type=click.IntRange(1), default=5, help="The step in which it is killed.")
    @click.option("--grace", type=click.IntRange(1, 600), default=5, help="Seconds to notice it.")
    def command(ranks: int, steps: int, batch: int, lose: int | None, at: int, grace: int) -> None:
        lose = ranks - 1 if lose is None else lose
        if lose >= ranks:
            raise click.UsageError(f"--lose must be a rank from 0 to {ranks - 1}, not {lose}")
        if at > steps - WATCHED:
            raise click.UsageError(f"--at must be at most {steps - WATCHED} of {steps} steps, not {at}")
        if batch < ranks:
            raise click.UsageError(f"--batch must be at least the {ranks} ranks, not {batch}")
        if started not in (None, ranks):
            raise click.UsageError(f"torchrun has started {started} ranks: leave --ranks out")
        settings = train, load_samples(), steps, batch, ranks
        if started:
            store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
            found, left = [survive(store, int(os.environ["RANK"]), *settings, None, grace)], ranks
        else:
            try:
                found, left = those_left(survive, ranks, *settings, (lose, at), grace), ranks - 1
            except RankError as error:
                click.echo(str(error), err=True)
                sys.exit(1)
        told = next((one for one in found if one is not None), None)
        if told is None:
            return
        shape = model_shape(new_model(), SEQUENCE)
        print(what(shape, ranks, batch))
        if left < ranks:
            seconds = told.seconds[at - 1]
            print(
                f"Rank {lose} is killed in step {at}, which takes {seconds:.1f} s; {left} of {ranks} ranks go on.\n"
            )
        alone = run(one_device, chosen(settings[1], batch, steps), steps, alone=True)
        plan = Plan(dp=left, micro_batch=-(-batch // left), precision="fp32", attention="flash")
        show(told, alone, shape, plan, ddp_traffic([shape.parameters + 1], left), batch)  # and the loss

    command()


def those_left(call: Callable[..., Any], ranks: int, *args: Any) -> list[Any]:
    """``call(store, name, *args)`` in a process for each name 0, 1, …; what those return that do not die.

    ``store`` is the path of a file at which they can meet.

    Raises:
        RankError: one of them raised an exception.
    """
    with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
        worlds = [World(1, "gloo", quiet=True) for _ in range(ranks)]
        try:
            for name, world in enumerate(worlds):
                world.begin(call, (str(Path(folder, "store")), name, *args))
            processes = [world.processes[0] for world in worlds]
            while any(w.is_alive() and w.processes[0].returned is None for w in worlds):
                wait([source for p in processes for source in p.sources()], timeout=0.5)
                for world in worlds:
                    world.processes[0].receive()
                    if world.processes[0].raised:
                        raise error_of_raised(world.processes)
            return [read_result(p) for p in processes if p.returned is not None]
        finally:
            for world in worlds:
                world.stop()


def survive(
    store: dist.Store | str,
    name: int,
    train: Train,
    samples: list[Tensor],
    steps: int,
    batch: int,
    ranks: int,
    fatal: tuple[int, int] | None,
    grace: float,
) -> Run | None:
    """Train on this rank. None where another one tells: the rank 0 of the last round does.

    Args:
        fatal: ``(rank, step)``: this rank gets SIGKILL in this step.
    """
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    if isinstance(store, str):  # not under torchrun: this process is alone in its world
        set_device(name)
        store = dist.FileStore(store, -1)
    place = {"store": store, "name": name, "ranks": ranks, "grace": grace}
    batches = killed(chosen(samples, batch, steps), *(fatal or (-1, 0)), name)
    found = run(partial(train, **place), batches, steps)
    return found if dist.get_rank() == 0 else None


def killed(batches: Iterable, victim: int, step: int, name: int) -> Iterator:
    """The batches. In place of this step's, the victim is killed."""
    for number, batch in enumerate(batches, 1):
        if name == victim and number == step:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
