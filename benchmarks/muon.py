"""Muon on shards, an owner for each matrix, beside torch.optim.Muon on FSDP2's shards.

python benchmarks/muon.py [--rounds 15] [--hidden 256]

On 2 ranks, Gloo on the CPU, three train the same GPT in turn: by hand, the course's FSDP, and FSDP2. A step ends when
the slowest rank has ended it.

Prints the ratio of the bytes that a rank sends in a step (target: at most 0.5), by hand and in production, and the
median ratios of the times (target: at most 1), and ends with exit code 1 where one is missed. Takes about a minute on
two idle cores.
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
from paired import count, report, rounds
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW

from course_lib.by_hand import muon
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from course_lib.parallelize import mesh_axes, parallelize
from course_lib.runtime import launch
from course_lib.runtime.mesh import make_mesh
from simulator.inputs.plan import Plan


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


def production(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[None]:
    plan = Plan(dp=2, zero=3, microbatches=1, precision="fp32", optimizer="muon")
    parallel, optimizer = parallelize(model, plan, make_mesh(mesh_axes(plan)))
    for inputs, targets in batches:
        parallel.forward_backward(inputs, targets)
        optimizer.step()
        optimizer.zero_grad()
        yield


def compare(rounds: int, hidden: int) -> tuple[list[tuple[float, ...]], tuple[float, ...]]:
    """Seconds of (by hand, production, theirs), round by round, each first in turn; and bytes sent in a step."""
    torch.set_num_threads(1)
    torch.manual_seed(dist.get_rank())
    tokens = torch.randint(256, (8, 65))
    model = GPT(GPTConfig.tiny(hidden_size=hidden))
    batches = iter(lambda: (tokens[:, :-1], tokens[:, 1:]), None)
    steps = (
        muon.train(copy.deepcopy(model), batches, AdamW, cross_entropy),
        production(copy.deepcopy(model), batches),
        official(model, batches),
    )
    for step in steps * 2:
        next(step)
    sent = []
    for step in steps:
        with record_traffic() as log:
            next(step)
        sent.append(log.traffic.sent)
    times = []
    for i in range(rounds):
        took = {which % 3: seconds(partial(next, steps[which % 3])) for which in range(i, i + 3)}
        times.append(tuple(took[which] for which in range(3)))
    return times, tuple(sent)


def seconds(step: partial) -> float:
    dist.barrier()
    start = time.perf_counter()
    step()
    dist.barrier()
    return time.perf_counter() - start


@click.command(help=__doc__)
@rounds(15)
@count("--hidden", 256, "Width of the model.")
def main(rounds: int, hidden: int) -> None:
    times, sent = launch(compare, 2, args=(rounds, hidden), backend="gloo", timeout=None, quiet=True)[0]
    *ours, theirs = zip(*times, strict=True)
    for name, bytes in zip(("by hand", "production"), sent, strict=False):
        ratio = bytes / sent[-1]
        print(
            f"{name}: a rank sends {bytes:,.0f} bytes a step, {ratio:.3f} of {sent[-1]:,.0f}; target at most 0.5"
        )
    for name, seconds in zip(("by hand", "production"), ours, strict=True):
        report(f"{name}: seconds of a step", seconds, theirs, at_most=1.0)
    sys.exit(max(sent[:-1]) > 0.5 * sent[-1])


if __name__ == "__main__":
    main()
