"""Step time of our bucketed DDP beside torch's DistributedDataParallel, on 2 Gloo ranks, alternating in one run.

python benchmarks/ddp.py [--ranks 2] [--width 32] [--batch 64] [--rounds 25]

The naive DDP, one message for each parameter, runs beside them. Prints the median ratio of the step times of each of
ours to torch's, and ends with exit code 1 where that of the bucketed one misses its target. Takes about 20 seconds on
two idle cores.
"""

from __future__ import annotations

import copy
import time

import click
import torch
import torch.distributed as dist
import torch.nn.functional as F
from paired import count, report, rounds
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.data.digits import load_digits
from course_lib.data.sharding import batches
from course_lib.data_parallel.ddp import DDP, NaiveDDP
from course_lib.models.resnet import ResNet18
from course_lib.runtime import current_device, launch


def step_times(width: int, batch: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each step by implementation; within a round they follow each other directly."""
    device = current_device()
    torch.manual_seed(0)
    model = ResNet18(10, 1, small_images=True, width=width).to(device)
    sides: dict[str, nn.Module] = {
        "ours": DDP(copy.deepcopy(model)),
        "torch": DistributedDataParallel(copy.deepcopy(model)),
        "naive": NaiveDDP(copy.deepcopy(model)),
    }
    optimizers = {name: torch.optim.SGD(side.parameters(), lr=0.01) for name, side in sides.items()}
    data = batches(load_digits(), batch, rank=dist.get_rank(), ranks=dist.get_world_size())
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 3):
        images, labels = (t.to(device) for t in next(data))
        order = list(sides) if turn % 2 else list(reversed(sides))
        for name in order:
            dist.barrier()
            start = time.perf_counter()
            optimizers[name].zero_grad()
            F.cross_entropy(sides[name](images), labels).backward()
            if name == "naive":
                sides[name].average_gradients()
            optimizers[name].step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 3:  # the first turns warm up
                times[name].append(time.perf_counter() - start)
    return times


@click.command(help=__doc__)
@count("--ranks", 2, "Processes that train together.")
@count("--width", 32, "Channels of ResNet-18's first stage (64 in the paper).")
@count("--batch", 64, "Images a step, over all ranks.")
@rounds(25)
def main(ranks: int, width: int, batch: int, rounds: int) -> None:
    times = launch(step_times, ranks, args=(width, batch, rounds), timeout=None)[0]
    report("naive / torch DDP", times["naive"], times["torch"])
    report("ours / torch DDP", times["ours"], times["torch"], at_most=1.10)


if __name__ == "__main__":
    main()
