"""06.5: the norm of a gradient that is spread over ranks, and its clipping."""

import torch
import torch.distributed as dist
from course_checks.on_ranks import on_ranks
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic
from simulator.predict.collective_traffic import sent_bytes

FACTS = {
    "norm": Fact("the norm", "Return the norm as it was before", tolerance=1e-4, each="rank"),
    "after": Fact("{} after clipping", "multiply all of it by `max_norm` /…", tolerance=1e-4, each="rank"),
    "calls": Fact("collectives", most=1),
    "sent": Fact("bytes sent beyond an all-reduce of 8", most=0),
}

# counts: for each rank, how many elements of each of its shards are real; wholes: tensors that every rank
# has; the first stands in the list twice
Case = record("name counts wholes max_norm", zero=False)
CASES = [
    Case("2 ranks, norm above 1", [[4, 6], [6, 1]], 2, 1.0),
    Case("3 ranks, one of them without a shard", [[5, 2], [], [3, 0]], 2, 0.5),
    Case("3 ranks, nothing is whole", [[5], [5], [4]], 0, 0.5),
    Case("3 ranks, nothing is sharded", [[], [], []], 3, 0.5),
    Case("2 ranks, norm below 100", [[4], [2]], 2, 100.0),
    Case("2 ranks, a gradient of zero", [[4], [2]], 0, 0.5, zero=True),
    Case("1 rank", [[3]], 1, 0.5),
]


@on_ranks(FACTS, lambda case: len(case.counts))
def observe(answer, case: Case) -> dict:
    ranks, me = len(case.counts), dist.get_rank()
    draw = torch.Generator().manual_seed(case.seed)
    two, four = torch.randn(3, 2, generator=draw), torch.randn(4, generator=draw)
    whole = [two, four, four.clone()][: case.wholes]
    draw.manual_seed(case.seed + 1 + me)
    shards = []
    for count in case.counts[me]:
        shard = torch.zeros(6) if case.zero else torch.randn(6, generator=draw)
        shard[count:] = 50.0  # padding
        shards.append((shard, count))
    with record_traffic() as log:
        norm = answer(list(shards), [*whole, *whole[:1]], case.max_norm)
    after = {f"shard {i}": tensor[:count] for i, (tensor, count) in enumerate(shards)}
    one = isinstance(norm, Tensor) and norm.numel() == 1
    return {
        "norm": norm.detach().reshape(()).clone() if one else norm,
        "after": after | {f"tensor {i} of `whole`": tensor for i, tensor in enumerate(whole)},
        "calls": log.traffic.calls,
        "sent": max(0, round(log.traffic.sent - sent_bytes("all-reduce", 8, ranks))),
    }
