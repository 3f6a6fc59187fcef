"""Muon on shards by hand, an owner for each matrix, beside torch.optim.Muon on FSDP2's shards.

python benchmarks/muon.py [--rounds 15]

On 2 ranks, Gloo on the CPU, both train the same GPT in turn; a step ends when the slowest rank has ended it.

Prints the ratio of the bytes that a rank sends in a step (target: at most 0.5) and the median ratio of the times
(target: at most 1), and ends with exit code 1 where one is missed. Takes about a minute on two idle cores.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator
from functools import partial

import click
import torch
import torch.distributed as dist
from paired import report, rounds
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW

from course_lib.by_hand import muon
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import launch


def official(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[None]:
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    matrices = [w for w in model.blocks.parameters() if w.ndim == 2]
    taken = set(matrices)
    optimizers = (
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0),
        AdamW([w for w in model.parameters() if w not in taken]),
    )
    for inputs, targets in batches:
        cross_entropy(model(inputs), targets).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        yield


def compare(rounds: int) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """Seconds of (ours, theirs), pair by pair, each first in turn; and bytes sent in a step."""
    torch.set_num_threads(1)
    torch.manual_seed(dist.get_rank())
    tokens = torch.randint(256, (8, 65))
    model = GPT(GPTConfig.tiny(hidden_size=256))
    batches = iter(lambda: (tokens[:, :-1], tokens[:, 1:]), None)
    steps = (
        muon.train(copy.deepcopy(model), batches, AdamW, cross_entropy),
        official(model, batches),
    )
    for step in steps * 2:
        next(step)
    sent = []
    for step in steps:
        with record_traffic() as log:
            next(step)
        sent.append(log.traffic.sent)
    return [pair(steps, first=i % 2) for i in range(rounds)], tuple(sent)


def pair(steps: tuple[Iterator, Iterator], first: int) -> tuple[float, float]:
    took = {which: seconds(partial(next, steps[which])) for which in (first, 1 - first)}
    return took[0], took[1]


def seconds(step: partial) -> float:
    dist.barrier()
    start = time.perf_counter()
    step()
    dist.barrier()
    return time.perf_counter() - start


@click.command(help=__doc__)
@rounds(15)
def main(rounds: int) -> None:
    times, (ours, theirs) = launch(compare, 2, args=(rounds,), backend="gloo", timeout=None, quiet=True)[0]
    print(
        f"bytes sent by a rank in a step: {ours:,.0f} and {theirs:,.0f}, {ours / theirs:.3f}; target at most 0.5"
    )
    report("seconds of a step", *zip(*times, strict=True), at_most=1.0)
    sys.exit(ours > 0.5 * theirs)


if __name__ == "__main__":
    main()
