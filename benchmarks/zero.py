"""The step time of ZeRO stage 1 by hand beside torch's ZeroRedundancyOptimizer on torch's DDP.

python benchmarks/zero.py [--rounds 25]

On 2 ranks, Gloo on the CPU, both train the same GPT in turn; a step ends when the slowest rank has ended it.

Prints for each of three models the median ratio of their times beside its target, and ends with exit code 1 where one
is missed. Takes about a minute and a half on two idle cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import click
import torch
import torch.distributed as dist
from paired import report, rounds
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from course_lib.data_parallel.zero import Zero1
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import launch

MODELS = {  # name -> configuration, sequences of 64 tokens for each rank
    "0.8 M parameters, 8 sequences": (GPTConfig.tiny(), 8),
    "3.3 M parameters, 4 sequences": (GPTConfig.tiny(hidden_size=256), 4),
    "19 M parameters, 8 sequences": (GPTConfig.tiny(hidden_size=512, num_layers=6), 8),
}


def seconds(step: Callable[[], None]) -> float:
    dist.barrier()
    start = time.perf_counter()
    step()
    dist.barrier()
    return time.perf_counter() - start


def training_step(model: nn.Module, optimizer: Zero1 | ZeroRedundancyOptimizer, tokens: Tensor) -> None:
    optimizer.zero_grad()
    cross_entropy(model(tokens)[:, :-1], tokens[:, 1:]).backward()
    optimizer.step()


def compare(config: GPTConfig, sequences: int, rounds: int) -> list[tuple[float, float]]:
    """Seconds of (ours, theirs), pair by pair, each first in turn."""
    torch.set_num_threads(1)
    model, wrapped = GPT(config), DistributedDataParallel(GPT(config))
    zero = Zero1(model, AdamW, lr=1e-3)
    official = ZeroRedundancyOptimizer(wrapped.parameters(), AdamW, lr=1e-3)
    tokens = torch.randint(config.vocab_size, (sequences, 64))
    steps = (
        lambda: training_step(model, zero, tokens),
        lambda: training_step(wrapped, official, tokens),
    )
    for step in steps * 2:
        step()
    times = []
    for pair in range(rounds):
        order = (0, 1) if pair % 2 else (1, 0)
        took = {which: seconds(steps[which]) for which in order}
        times.append((took[0], took[1]))
    return times


@click.command(help=__doc__)
@rounds(25)
def main(rounds: int) -> None:
    print("seconds of a step with ZeRO-1 by hand / with ZeroRedundancyOptimizer")
    for name, arguments in MODELS.items():
        times = launch(compare, 2, args=(*arguments, rounds), backend="gloo", timeout=None, quiet=True)[0]
        report(name, *zip(*times, strict=True), at_most=1.10)


if __name__ == "__main__":
    main()
