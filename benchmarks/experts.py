"""Expert parallelism of ``parallelize`` beside transformers' all-to-all path.

python benchmarks/experts.py [--rounds 15]

On 2 ranks, Gloo on the CPU, both train the same Mixtral of random weights in turn; a step ends when the slowest rank
has ended it. Theirs shards what is no expert's with FSDP2; ours has it whole on every rank, and averages its gradients.

Prints how far losses and gradient norms are apart (target: at most 1e-4), what a rank sends in a step (target: at most
as many bytes) and the median ratio of the times (target: at most 1), and ends with exit code 1 where one is missed.
Takes about a minute on two idle cores.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial

import click
import torch
import torch.distributed as dist
import transformers
from paired import report, rounds
from torch import Tensor
from torch.optim import SGD
from transformers.distributed import DistributedConfig

from course_lib.models.pretrained.mixtral import load_mixtral
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from course_lib.parallelize import mesh_axes, parallelize
from course_lib.runtime import launch
from course_lib.runtime.mesh import make_mesh
from simulator.inputs.plan import Plan
from simulator.ledgers.traffic import Traffic

RANKS = 2
SIZES = {
    "vocab_size": 256,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
Steps = Iterator[tuple[Tensor, Tensor]]


def ours(folder: str, tokens: Tensor) -> Steps:
    plan = Plan(dp=RANKS, ep=RANKS, precision="fp32")
    model, optimizer = parallelize(load_mixtral(folder)[0], plan, make_mesh(mesh_axes(plan)), SGD, lr=0.1)
    while True:
        optimizer.zero_grad()
        loss = model.forward_backward(tokens[:, :-1], tokens[:, 1:])
        norm = model.clip_grad_norm()
        optimizer.step()
        yield loss, norm


def official(folder: str, tokens: Tensor) -> Steps:
    ranks = dist.get_world_size()
    config = DistributedConfig(fsdp_size=ranks, ep_size=ranks, ep_implementation="all_to_all")
    model = transformers.MixtralForCausalLM.from_pretrained(
        folder, distributed_config=config, experts_implementation="grouped_mm", dtype=torch.float32
    )
    optimizer = SGD(model.parameters(), lr=0.1, foreach=False)
    while True:
        loss = cross_entropy(model(tokens[:, :-1]).logits, tokens[:, 1:])
        loss.backward()
        squares = torch.zeros(())
        for p in model.parameters():
            squares += p.grad.to_local().square().sum()
        dist.all_reduce(squares)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), squares.sqrt()


def compare(folder: str, rounds: int) -> tuple[list[tuple[float, float]], list[Traffic], float]:
    """Seconds of (ours, theirs), pair by pair, each first in turn; what each sends in a step; how far losses and norms
    of two steps are apart."""
    torch.set_num_threads(1)
    torch.manual_seed(dist.get_rank())
    tokens = torch.randint(256, (8, 65))
    steps = ours(folder, tokens), official(folder, tokens)
    apart = max(float((mean(next(steps[0])) - mean(next(steps[1]))).abs().max()) for _ in range(2))
    sent = []
    for step in steps:
        with record_traffic() as log:
            next(step)
        sent.append(log.traffic)
    return [pair(steps, first=i % 2) for i in range(rounds)], sent, apart


def mean(told: tuple[Tensor, Tensor]) -> Tensor:
    """Loss and norm, over the ranks: theirs is the loss of a rank's own samples."""
    dist.all_reduce(both := torch.stack([one.double() for one in told]))
    return both / RANKS


def pair(steps: tuple[Steps, Steps], first: int) -> tuple[float, float]:
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
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES)).save_pretrained(folder)
        found = launch(compare, RANKS, args=(folder, rounds), backend="gloo", timeout=None, quiet=True)
    times, (us, them), apart = found[0]
    print(f"losses and gradient norms are at most {apart:.1e} apart; target at most 1e-4")
    for what, own, their in (
        ("all bytes", us.sent, them.sent),
        ("bytes of all-to-all", us.of("all-to-all").sent, them.of("all-to-all").sent),
        ("collectives", us.calls, them.calls),
    ):
        print(f"{what} of a rank in a step: {own:,.0f} and {their:,.0f}, {own / their:.3f}")
    report("seconds of a step", *zip(*times, strict=True), at_most=1.0)
    sys.exit(apart > 1e-4 or us.sent > them.sent)


if __name__ == "__main__":
    main()
