"""07.3: the average of a gradient in hybrid sharding, and the bytes that it sends."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime.kept import launch

TARGET = "no more bytes than these in either group. The links between the copies are the slow ones."
FACTS = {
    "mean": Fact(
        "the part of the mean",
        "Return this rank's part of the mean over all W ranks: its n/F elements, that is, part r of F…",
        tolerance=1e-5,
        each="rank",
    ),
    "predicted": Fact("the prediction (inside, between)", "Return the bytes that a rank…", tolerance=1e-5),
    "between": Fact("bytes sent between copies beyond the all-reduce of a shard", TARGET, most=0),
    "inside": Fact("bytes sent inside beyond the reduce-scatter", TARGET, most=0),
}

Case = record("copies factor elements", lambda c: f"{c.copies * c.factor} ranks, F = {c.factor}")
CASES = [Case(2, 3, 12), Case(3, 2, 20), Case(1, 3, 9), Case(3, 1, 5)]


def on_rank(mesh: DeviceMesh, answer, elements: int, seed: int) -> tuple[Tensor, dict[int, float]]:
    """The answer's average on this rank, and what it sent in groups of each size."""
    draw = torch.Generator().manual_seed(seed + dist.get_rank())
    with record_traffic() as log:
        result = answer(torch.randn(elements, generator=draw), mesh.get_group(1), mesh.get_group(0))
    return result, {n: sum(r.sent for r in log.traffic.rows if r.group_size == n) for n in range(2, 9)}


def observe(answers, case: Case) -> dict:
    average_gradient, predicted_bytes = answers
    copies, factor, elements, seed = case
    seen = launch(
        on_rank,
        mesh={"copies": copies, "shards": factor},
        args=(average_gradient, elements, seed),
        backend="gloo",
        timeout=60.0,
        quiet=True,
    )
    inside = 4 * elements * (factor - 1) / factor
    between = 2 * 4 * elements / factor * (copies - 1) / copies
    sent = [one[1] for one in seen]
    return {
        "mean": [one[0] for one in seen],
        "predicted": list(map(float, predicted_bytes(elements, factor, copies))),
        "between": max(0, round(max(one.get(copies, 0) for one in sent) - between)),
        "inside": max(0, round(max(one.get(factor, 0) for one in sent) - inside)),
    }
