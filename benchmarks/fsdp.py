"""FSDP by hand beside PyTorch's ``fully_shard``: a whole training step of a GPT on 2 Gloo ranks.

python benchmarks/fsdp.py [--rounds 25]

The two take turns. Prints the median ratio of their times beside its target, and ends with exit code 1 where it is
missed. Takes about 20 seconds on two idle cores.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import click
import torch
import torch.distributed as dist
from paired import report, rounds
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from course_lib.data_parallel.fsdp import FSDP
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import launch

WARM_UP = 2
CONFIG = GPTConfig.tiny(num_layers=6, hidden_size=256)  # 4.8 million parameters
BATCH = (4, 64)  # sequences of a rank, tokens of each


def ours(mesh: DeviceMesh) -> nn.Module:
    model = GPT(CONFIG)
    FSDP(model, ["blocks.*"], mesh)
    return model


def official(mesh: DeviceMesh) -> nn.Module:
    model = GPT(CONFIG)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def step_of(model: nn.Module) -> Callable[[], float]:
    """One training step, timed from a common start to the last rank's end."""
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, CONFIG.vocab_size, (BATCH[0], BATCH[1] + 1))

    def step() -> float:
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).backward()
        optimizer.step()
        dist.barrier()
        return time.perf_counter() - start

    return step


def measure(mesh: DeviceMesh, rounds: int) -> tuple[list[float], list[float]]:
    warnings.simplefilter("ignore", FutureWarning)  # fully_shard uses names that torch 2.13 gave up
    torch.manual_seed(0)
    steps = step_of(ours(mesh)), step_of(official(mesh))
    for _ in range(WARM_UP):
        for step in steps:
            step()
    times: tuple[list[float], list[float]] = [], []
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 else (1, 0):
            times[which].append(steps[which]())
    return times


@click.command(help=__doc__)
@rounds(25)
def main(rounds: int) -> None:
    print(f"one step of a GPT with {CONFIG.parameters / 1e6:.1f} million parameters, 2 ranks")
    mine, theirs = launch(measure, mesh={"shard": 2}, args=(rounds,), timeout=None)[0]
    report("FSDP by hand / fully_shard", mine, theirs, at_most=1.15)


if __name__ == "__main__":
    main()
