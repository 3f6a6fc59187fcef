"""Tensor and sequence parallelism by hand beside PyTorch's ``parallelize_module``: forward, loss and backward of a GPT.

python benchmarks/tensor_parallel.py [--ranks 2] [--hidden 256] [--rounds 25]

The two take turns. On both sides the vocabulary is cut, too, and the loss is that of cut logits.

Prints the median ratio of their times, without and with sequence parallelism, beside its target, and ends with exit
code 1 where one is missed. Takes about 20 seconds on two idle cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import click
import torch
import torch.distributed as dist
import torch.nn.functional as F
from paired import count, report, rounds
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.runtime import current_device, launch
from course_lib.tensor_parallel.apply import apply_tensor_parallel
from course_lib.tensor_parallel.vocab import VocabParallelCrossEntropy

WARM_UP = 3
BATCH = (4, 64)  # sequences, tokens of each


def model_of(hidden: int) -> GPT:
    torch.manual_seed(0)
    # parallelize_module unties tied weights, so both have an output matrix of their own
    config = GPTConfig.tiny(num_layers=6, hidden_size=hidden, tie_embeddings=False)
    return GPT(config).to(current_device())


def official(hidden: int, mesh: DeviceMesh, sequence_parallel: bool) -> GPT:
    """The layouts that torch's tutorial gives a transformer, those of its sequence parallelism with ``Shard(1)``."""
    outside = Shard(1) if sequence_parallel else Replicate()  # of activations between the regions
    plan = {
        "embedding.tokens": RowwiseParallel(input_layouts=Replicate()),
        "blocks.*.attention.query": ColwiseParallel(),
        "blocks.*.attention.key": ColwiseParallel(),
        "blocks.*.attention.value": ColwiseParallel(),
        "blocks.*.attention.output": RowwiseParallel(output_layouts=outside),
        "blocks.*.mlp.up": ColwiseParallel(),
        "blocks.*.mlp.down": RowwiseParallel(output_layouts=outside),
        "blocks.*.attention": PrepareModuleInput(
            input_layouts=(outside,), desired_input_layouts=(Replicate(),)
        ),
        "blocks.*.mlp": PrepareModuleInput(input_layouts=(outside,), desired_input_layouts=(Replicate(),)),
        "head": ColwiseParallel(input_layouts=outside, output_layouts=Shard(-1), use_local_output=False),
    }
    if sequence_parallel:
        plan |= {
            "embedding": PrepareModuleOutput(
                output_layouts=(Replicate(),), desired_output_layouts=(Shard(1),)
            ),
            "blocks.*.norm_1": SequenceParallel(),
            "blocks.*.norm_2": SequenceParallel(),
            "norm": SequenceParallel(),
        }
    return parallelize_module(model_of(hidden), mesh, plan)


def measure(
    mesh: DeviceMesh, hidden: int, rounds: int, sequence_parallel: bool
) -> tuple[list[float], list[float]]:
    ours = apply_tensor_parallel(model_of(hidden), mesh, sequence_parallel=sequence_parallel)
    theirs = official(hidden, mesh, sequence_parallel)
    tokens, targets = torch.randint(256, (2, *BATCH), generator=torch.Generator().manual_seed(1)).to(
        current_device()
    )
    loss_fn = VocabParallelCrossEntropy(256, mesh)

    def our_pass() -> torch.Tensor:
        ours.zero_grad()
        loss = loss_fn(ours(tokens), targets)
        loss.backward()
        return loss

    def their_pass() -> torch.Tensor:
        theirs.zero_grad()
        with loss_parallel():
            loss = F.cross_entropy(theirs(tokens).flatten(0, 1), targets.flatten())
            loss.backward()
        return loss

    torch.testing.assert_close(our_pass().detach(), their_pass().detach().to_local())
    passes: tuple[Callable[[], torch.Tensor], ...] = (our_pass, their_pass)
    times: tuple[list[float], list[float]] = [], []
    for turn in range(WARM_UP + rounds):
        for which in (0, 1) if turn % 2 else (1, 0):
            dist.barrier()
            start = time.perf_counter()
            passes[which]()
            if current_device().type == "cuda":
                torch.cuda.synchronize()
            dist.barrier()
            if turn >= WARM_UP:
                times[which].append(time.perf_counter() - start)
    return times


@click.command(help=__doc__)
@count("--ranks", 2, "Processes that share each layer.")
@count("--hidden", 256, "Hidden size of the GPT.")
@rounds(25)
def main(ranks: int, hidden: int, rounds: int) -> None:
    for name, sequence_parallel in (("tensor parallel", False), ("with sequence parallel", True)):
        ours, theirs = launch(
            measure, mesh={"tp": ranks}, args=(hidden, rounds, sequence_parallel), timeout=None
        )[0]
        report(f"{name}, forward and backward: ours / parallelize_module", ours, theirs, at_most=1.00)


if __name__ == "__main__":
    main()
