"""Four ranks from start to exit: launch beside torch.multiprocessing.spawn doing the same, alternating in one run.

python benchmarks/launch.py [--ranks 4] [--rounds 5]

Then ranks that stay (%%ranks): how long four of them take to start and run a first cell, and how long an empty cell
takes on them.

Prints these times and the median ratio of spawn's to launch's, and ends with exit code 1 where that misses its
target. Takes about half a minute on two idle cores.
"""

from __future__ import annotations

import statistics
import tempfile
import time

import click
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from IPython.core.interactiveshell import InteractiveShell
from paired import count, report, rounds

from course_lib.runtime import launch


def all_reduce() -> float:
    t = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(t)
    return t.item()


def spawned(rank: int, ranks: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    all_reduce()
    dist.destroy_process_group()


def seconds_with_spawn(ranks: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        mp.spawn(spawned, args=(ranks, f"{folder}/store"), nprocs=ranks)
        return time.perf_counter() - start


def seconds_with_launch(ranks: int) -> float:
    start = time.perf_counter()
    launch(all_reduce, ranks)
    return time.perf_counter() - start


def seconds_of_staying_ranks(ranks: int, cells: int = 20) -> tuple[float, float]:
    """To the end of the first cell, and of the median empty cell after it."""
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "course_lib")
    start = time.perf_counter()
    shell.run_cell_magic("ranks", str(ranks), "pass")
    first = time.perf_counter() - start
    times = []
    for _ in range(cells):
        start = time.perf_counter()
        shell.run_cell_magic("ranks", "", "pass")
        times.append(time.perf_counter() - start)
    shell.run_line_magic("ranks", "stop")
    return first, statistics.median(times)


@click.command(help=__doc__)
@count("--ranks", 4, "Processes that are started.")
@rounds(5)
def main(ranks: int, rounds: int) -> None:
    print(f"the first launch, which starts the fork server: {seconds_with_launch(ranks):.2f} s")
    launched, spawn = [], []
    for _ in range(rounds):
        launched.append(seconds_with_launch(ranks))
        spawn.append(seconds_with_spawn(ranks))
    report("spawn / launch, warm", spawn, launched, at_least=15)
    first, empty = seconds_of_staying_ranks(ranks)
    print(
        f"%%ranks {ranks}: started and the first cell run in {first:.2f} s; an empty cell takes {empty * 1000:.1f} ms"
    )


if __name__ == "__main__":
    main()
