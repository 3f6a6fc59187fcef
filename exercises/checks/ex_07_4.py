"""07.4: a step of SGD that gathers and computes in bfloat16, and sums and updates in fp32."""

import torch
import torch.distributed as dist
from course_checks.on_ranks import on_ranks
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic
from simulator.predict.collective_traffic import sent_bytes

LR = 1e-3
TARGET = "2 bytes for each parameter that is gathered, and of the gradients a rank sends no more than a…"
FACTS = {
    "given": Fact("what the loss is computed from", "Call it once, with the parameters of the whole unit…"),
    "update": Fact(
        "the update, divided by `lr` and by the largest element of the mean gradient,",
        "Their mean may be wrong by at most a thousandth of its largest element.",
        tolerance=1e-3,
        each="rank",
    ),
    "gathered": Fact("bytes gathered beyond 2 for each parameter", TARGET, most=0),
    "sent": Fact("bytes sent of the gradients beyond a reduce-scatter in fp32", TARGET, most=0),
}

# weights: of what cancels between the ranks, by rank; elements: of a shard
Case = record("weights elements", lambda c: f"{len(c.weights)} ranks, shards of {c.elements}")
# All unlike on 3 and 4. A division by 2 or 4 is exact in bfloat16, and one by 3 is not.
MIXTURES = [((-100, 100), 6), ((-100, 70, -30, 60), 5), ((-100, 30, 70), 1), ((-100, 30, 70), 7)]
CASES = [Case(*case) for case in MIXTURES]


def first_shard(rank: int, elements: int, seed: int) -> Tensor:
    return 1 + torch.rand(elements, generator=torch.Generator().manual_seed(seed + 80 + rank))


def slope_of(weight: int, elements: int, seed: int) -> Tensor:
    """(elements,) bfloat16: what all ranks' batches share, and ``weight`` times what cancels between the ranks."""
    signal, noise = (
        torch.randn(elements, generator=torch.Generator().manual_seed(seed + more)) for more in (90, 91)
    )
    return (signal + weight * noise).bfloat16()


@on_ranks(FACTS, lambda case: len(case.weights), quiet=True)
def observe(mixed_step, case: Case) -> dict:
    weights, elements, seed = case
    ranks, total, given = len(weights), len(weights) * elements, []
    before = [first_shard(rank, elements, seed) for rank in range(ranks)]
    slopes = [slope_of(weight, total, seed) for weight in weights]
    own = [torch.cat(before).bfloat16() + slope for slope in slopes]
    scale = (sum(gradient.double() for gradient in own) / ranks).abs().max()
    shard, slope = before[dist.get_rank()].clone(), slopes[dist.get_rank()]

    def loss_of(parameters: Tensor) -> Tensor:
        given.append((str(parameters.dtype).removeprefix("torch."), *parameters.shape))
        return (parameters * slope.to(parameters.dtype)).sum() + parameters.square().sum() / 2

    with record_traffic() as log:
        mixed_step(shard, loss_of, LR)
    rows = log.traffic.rows
    gathered = sum(row.payload for row in rows if row.collective == "all-gather")
    sent = sum(row.sent for row in rows if row.collective != "all-gather")
    return {
        "given": given,
        "update": (before[dist.get_rank()].double() - shard) / LR / scale,
        "gathered": max(0, gathered - 2 * total),
        "sent": max(0, round(sent - sent_bytes("reduce-scatter", 4 * total, ranks))),
        "trace": [(row.collective, row.payload) for row in rows],
    }
