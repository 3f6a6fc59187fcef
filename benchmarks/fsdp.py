"""FSDP by hand beside PyTorch's ``fully_shard``: a whole training step of a GPT on 2 Gloo ranks.

    python benchmarks/fsdp.py

The two take turns, so that a busy machine slows both; the figure is the median of the ratios of neighbouring
steps. Prints the target beside what was measured and exits with 1 if it is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path[0] = str(
    Path(__file__).parents[1]
)  # in this folder, simulator.py would hide the package of its name

# ruff: noqa: E402
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from course_lib.data_parallel.fsdp import FSDP
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.runtime import launch
from course_lib.training.loop import cross_entropy

TARGET, STEPS, WARM_UP = 1.15, 25, 2
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


def measure(mesh: DeviceMesh) -> tuple[list[float], list[float]]:
    warnings.simplefilter("ignore", FutureWarning)  # fully_shard uses names that torch 2.13 gave up
    torch.manual_seed(0)
    steps = step_of(ours(mesh)), step_of(official(mesh))
    for _ in range(WARM_UP):
        for step in steps:
            step()
    times: tuple[list[float], list[float]] = [], []
    for turn in range(STEPS):
        for which in (0, 1) if turn % 2 else (1, 0):
            times[which].append(steps[which]())
    return times


def main() -> int:
    mine, theirs = launch(measure, mesh={"shard": 2}, timeout=600)[0]
    ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
    met = ratio <= TARGET
    print(f"one step of a GPT with {CONFIG.parameters / 1e6:.1f} million parameters, 2 ranks, {STEPS} pairs")
    print(f"{'':36}{'measured':>10}{'target':>10}")
    print(f"{'FSDP by hand, ms':36}{statistics.median(mine) * 1e3:10.1f}")
    print(f"{'fully_shard, ms':36}{statistics.median(theirs) * 1e3:10.1f}")
    print(f"{'ratio, median of pairs':36}{ratio:10.3f}{TARGET:10.2f}{'' if met else '  MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
