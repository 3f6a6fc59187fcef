"""Step time of DDP and of compressed exchanges over links of several bandwidths, predicted and measured.

python benchmarks/compression.py [--ranks 2] [--mbit 20,100,500] [--rounds 7] [--delayed]

Where root may make network namespaces, the link is really slow (``tc tbf``). Elsewhere messages are delayed on
purpose, and the first line says so.

Prints for each method the bandwidth below which it is predicted to pay, and for each bandwidth the predicted and the
measured step of each method. It judges nothing. Takes about a minute on two idle cores.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import click
import slow_network
import torch
import torch.distributed as dist
import torch.nn.functional as F
from paired import count, list_of, report, rounds
from torch import nn

from course_lib.compression.bytegrad import ByteGrad
from course_lib.compression.hook import CommHook
from course_lib.compression.onebit import OneBit
from course_lib.compression.powersgd import PowerSGD
from course_lib.compression.sparsify import RandomK, TopK
from course_lib.data.digits import load_digits
from course_lib.data.sharding import batches
from course_lib.data_parallel.ddp import DDP
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import launch
from course_lib.runtime.slow_link import slow_link
from simulator.inputs.hardware import Link
from simulator.predict.compression_time import Method, crossing_bandwidth, exchange_step_seconds

HOOKS: dict[str, Callable[[], CommHook | None]] = {
    "DDP": lambda: None,
    "8 bits": ByteGrad,
    "1 bit": OneBit,
    "top 1 %": lambda: TopK(0.01),
    "random 1 %": lambda: RandomK(0.01),
    "rank 2": lambda: PowerSGD(2),
}
WARM_UP = 2


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def rounds_of_steps(
    spaces: list[str] | None, bandwidth: float, rounds: int
) -> dict[str, tuple[list[float], float, int]]:
    """For each method the seconds of its steps, in alternation, its bytes and its messages.

    Bandwidth 0: no limit at all, which gives the time of computing and compressing.
    """
    torch.set_num_threads(1)
    group = slow_network.join(spaces[dist.get_rank()]) if spaces else None
    data = batches(load_digits(), 64, rank=dist.get_rank(), ranks=dist.get_world_size())
    models = {name: DDP(network(), group=group, comm_hook=hook()) for name, hook in HOOKS.items()}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.05) for name, model in models.items()}
    found: dict[str, tuple[list[float], float, int]] = {}

    def step(name: str) -> None:
        images, labels = next(data)
        optimizers[name].zero_grad()
        F.cross_entropy(models[name](images), labels).backward()
        optimizers[name].step()

    for name in models:
        for _ in range(WARM_UP):
            step(name)
        with record_traffic() as log:
            step(name)
        method = Method.of(name, log.traffic)
        found[name] = [], method.sent, method.messages
    link: AbstractContextManager = slow_link(bandwidth) if bandwidth and not spaces else nullcontext()
    with link:
        for turn in range(rounds):
            for name in list(models) if turn % 2 else reversed(models):
                dist.barrier()
                start = time.perf_counter()
                step(name)
                found[name][0].append(time.perf_counter() - start)
    return found


def slowest(per_rank: list[dict[str, tuple[list[float], float, int]]], name: str) -> list[float]:
    """Of each round the seconds of the slowest rank."""
    return [max(seconds) for seconds in zip(*(rank[name][0] for rank in per_rank), strict=True)]


@click.command(help=__doc__)
@count("--ranks", 2, "Processes that train together.")
@click.option(
    "--mbit",
    type=list_of(float),
    default="20,100,500",
    show_default=True,
    help="Bandwidths of the link, in Mbit/s.",
)
@rounds(7)
@click.option("--delayed", is_flag=True, help="Delay messages on purpose, also where a link can be slowed.")
def main(ranks: int, mbit: list[float], rounds: int, delayed: bool) -> None:
    real = not delayed and slow_network.is_possible()
    print("the link is really slow (tc tbf)" if real else "no link is slow: messages are delayed on purpose")
    free = launch(rounds_of_steps, ranks, args=(None, 0, rounds), timeout=None)
    compute = {name: statistics.median(slowest(free, name)) for name in HOOKS}
    methods = {
        name: Method(name, sent, messages, max(0.0, compute[name] - compute["DDP"]))
        for name, (_, sent, messages) in free[0].items()
    }
    for name in list(HOOKS)[1:]:
        crossing = crossing_bandwidth(methods[name], methods["DDP"])
        print(f"{name}: predicted to pay below {crossing * 8e-6:,.0f} Mbit/s")
    for bandwidth in (rate * 1e6 / 8 for rate in mbit):
        print(f"\n{bandwidth * 8e-6:g} Mbit/s            predicted      measured")
        if real:
            with slow_network.namespaces(ranks, bandwidth, f"cl{os.getpid() % 100000}") as spaces:
                measured = launch(rounds_of_steps, ranks, args=(spaces, bandwidth, rounds), timeout=None)
        else:
            measured = launch(rounds_of_steps, ranks, args=(None, bandwidth, rounds), timeout=None)
        for name, method in methods.items():
            expected = exchange_step_seconds(method, Link(0.0, bandwidth), compute["DDP"])
            seconds = slowest(measured, name)
            print(f"{name:<12} {1e3 * expected:12.1f} ms {1e3 * statistics.median(seconds):10.1f} ms")
        for name in list(HOOKS)[1:]:
            report(f"{name} / DDP", slowest(measured, name), slowest(measured, "DDP"))


if __name__ == "__main__":
    main()
