"""07.3: the average of a gradient in hybrid sharding, and the bytes that it sends."""

import torch
import torch.distributed as dist
from course_checks.on_ranks import on_ranks
from torch.distributed.device_mesh import DeviceMesh

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic

TARGET = "no more bytes in either group than predicted. The links between the copies are the slow ones."
FACTS = {
    "mean": Fact("the part of the mean", "Return this rank's part of the mean…", tolerance=1e-5, each="rank"),
    "predicted": Fact("the prediction (inside, between)", "Return the bytes that a rank…", tolerance=1e-5),
    "between": Fact("bytes sent between copies beyond the all-reduce of a shard", TARGET, most=0),
    "inside": Fact("bytes sent inside beyond the reduce-scatter", TARGET, most=0),
}

Case = record("copies factor elements", lambda c: f"{c.copies * c.factor} ranks, F = {c.factor}")
CASES = [Case(2, 3, 12), Case(3, 2, 20), Case(1, 3, 9), Case(3, 1, 5)]


@on_ranks(FACTS, lambda case: {"copies": case.copies, "shards": case.factor}, quiet=True)
def observe(mesh: DeviceMesh, answers, case: Case) -> dict:
    average_gradient, predicted_bytes = answers
    copies, factor, elements, seed = case
    own = torch.randn(elements, generator=torch.Generator().manual_seed(seed + dist.get_rank()))
    with record_traffic() as log:
        mean = average_gradient(own, mesh.get_group(1), mesh.get_group(0))
    inner = sum(row.sent for row in log.traffic.rows if row.group_size == factor)
    outer = sum(row.sent for row in log.traffic.rows) - inner  # also what is sent between all ranks at once
    inside = 4 * elements * (factor - 1) / factor
    between = 2 * 4 * elements / factor * (copies - 1) / copies
    return {
        "mean": mean,
        "predicted": list(map(float, predicted_bytes(elements, factor, copies))),
        "between": max(0, round(outer - between)),
        "inside": max(0, round(inner - inside)),
    }
