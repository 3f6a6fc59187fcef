"""Experts on ranks under eight workloads, W0 to W7 of NVIDIA/Megatron-LM#7488: what imbalance costs.

python benchmarks/expert_workloads.py [--ranks 4] [--tokens 512] [--rounds 8]

Which token goes to which expert follows from the workload, its seed and the step alone. One layer of experts computes
forward and backward, on Gloo; a step ends when the slowest rank has ended it. In all that are hot, three of four tokens
go to a set of a quarter of the experts, and the others anywhere. (In the original W1 and W2 have the same set, and W3
one that is twice as large; here all sets are equally large, so that only the place differs.)

Prints for each the busiest expert and the busiest rank of its worst step, as multiples of the mean; the median seconds
of a step beside those of W0; and the median share that a capacity factor of 1.25 would drop. Three targets, and exit
code 1 where one is missed: copies that travel to their experts and back come home as they were; every byte is that
which the simulator says; W0 is balanced. Takes about a minute on two idle cores.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import click
import torch
import torch.distributed as dist
from paired import count, rounds
from torch import Tensor, nn

from course_lib.expert_parallel.apply import Travel, Way, apply_expert_parallel
from course_lib.models.experts import Experts, SparseMLP
from course_lib.observe.ledgers.expert_load import busiest
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import launch
from course_lib.runtime.mesh import make_mesh
from simulator.predict.expert_traffic import routed_traffic

WORKLOADS = {
    "W0": "balanced: in turn",
    "W1": "hot experts, drawn by the seed",
    "W2": "hot experts side by side, on one of 4 ranks",
    "W3": "hot experts far apart, on several ranks",
    "W4": "ranks have differently many tokens",
    "W5": "half of the experts get none",
    "W6": "hot experts that change every 3 steps",
    "W7": "every fourth step is hot",
}
E, K, HIDDEN, WIDTH, SEQUENCE = 8, 2, 256, 512, 32
HOT = max(K, E // 4)


class Result(NamedTuple):
    expert: float
    rank: float
    seconds: float
    dropped: float
    home: bool
    predicted: bool


def choose(workload: str, tokens: int, step: int, rank: int) -> Tensor:
    """The experts of a rank's tokens, ``(tokens, K)``: different ones."""
    number = int(workload[1])
    drawn = torch.Generator().manual_seed(number)
    experts, sets = torch.arange(E), {"W3": torch.arange(0, E, E // HOT)[:HOT]}
    sets |= {"W1": torch.randperm(E, generator=drawn)[:HOT], "W5": torch.arange(E // 2, E)}
    sets |= {"W6": (torch.arange(HOT) + step // 3 * HOT) % E}
    if workload == "W0":
        return ((torch.arange(tokens)[:, None] + rank * tokens) * K + torch.arange(K)) % E
    drawn.manual_seed((number * 1000 + step) * 1000 + rank)
    order = torch.rand(tokens, E, generator=drawn)
    hot = torch.isin(experts, sets.get(workload, torch.arange(HOT))).expand(tokens, E)
    asked = torch.arange(tokens) % 4 > 0
    if workload == "W5":
        asked |= True
    if workload == "W4" or (workload == "W7" and step % 4 != 3):
        asked &= False
    return (order + (hot & asked[:, None])).topk(K).indices


class Told(SparseMLP):
    """A layer whose router says what it is told."""

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full(self.told.shape, 1 / K), self.told


def run(tokens: int, rounds: int) -> list[Result]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    alone = Told(Experts(E, HIDDEN, WIDTH), nn.Linear(HIDDEN, E), 1.25)
    model = nn.ModuleList([Told(Experts(E, HIDDEN, WIDTH), nn.Linear(HIDDEN, E))])
    apply_expert_parallel(model, make_mesh({"ep": ranks})["ep"])
    found = []
    for workload in WORKLOADS:
        own = 2 * tokens * (rank + 1) // (ranks + 1) if workload == "W4" else tokens
        steps = [*measured(model[0], alone, workload, max(1, own // SEQUENCE) * SEQUENCE, rounds)]
        each = [*zip(*steps, strict=True)]
        middle = map(statistics.median, each[2:4])
        found.append(Result(max(each[0]), max(each[1]), *middle, all(each[4]), all(each[5])))
    return found


def measured(layer: Told, alone: Told, workload: str, tokens: int, rounds: int) -> Iterator[Result]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(rounds):
        layer.told = alone.told = choose(workload, tokens, step, rank)
        x = torch.randn(tokens // SEQUENCE, SEQUENCE, HIDDEN, requires_grad=True)
        dist.barrier()
        start = time.perf_counter()
        with record_traffic() as log:
            layer(x).sum().backward()
        own = time.perf_counter() - start
        routed = layer.experts.routed
        said = routed_traffic(routed.tolist(), HIDDEN, rank, itemsize=4)
        same = all(log.traffic.of(name) == said.of(name) for name in ("all-to-all", "all-gather"))
        way, copies = Way(routed, layer.experts.groups), torch.randn(tokens * K, HIDDEN)
        back = Travel.apply(Travel.apply(copies, way, False), way, True)
        alone(x.detach())
        dropped = torch.tensor([alone.told.numel() - alone.sizes.sum(), alone.told.numel()])
        dist.all_reduce(dropped)
        dist.all_reduce(seconds := torch.tensor(own), dist.ReduceOp.MAX)
        dist.all_reduce(right := torch.tensor([torch.equal(back, copies), same]).int(), dist.ReduceOp.MIN)
        share = float(dropped[0] / dropped[1])
        yield Result(*busiest([routed.sum(0).tolist()], ranks), seconds.item(), share, *right.bool().tolist())


@click.command(help=__doc__)
@count("--ranks", 4, "Ranks; they divide the 8 experts.")
@count("--tokens", 512, "Tokens of a rank in a step.")
@rounds(8)
def main(ranks: int, tokens: int, rounds: int) -> None:
    found = launch(run, ranks, args=(tokens, rounds), backend="gloo", timeout=None, quiet=True)[0]
    print(
        f"     expert   rank  seconds / W0  dropped    ({ranks} ranks, {tokens} tokens each, {K} of {E} experts)"
    )
    for (name, what), one in zip(WORKLOADS.items(), found, strict=True):
        ratio = one.seconds / found[0].seconds
        print(f"{name}   {one.expert:6.2f} {one.rank:6.2f}  {ratio:12.2f} {one.dropped:8.1%}    {what}")
    home, predicted = all(one.home for one in found), all(one.predicted for one in found)
    print(f"all copies came home as they were: {home}; every byte is predicted: {predicted}")
    sys.exit(not (home and predicted and found[0].expert == found[0].rank == 1.0))


if __name__ == "__main__":
    main()
