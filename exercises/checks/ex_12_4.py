"""12.4: the end of a composed step with three faults, mended, on real ranks with what backward would leave there."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from course_checks.on_ranks import on_ranks
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from course_lib.grading.judge import Fact, record
from course_lib.grading.material import material
from course_lib.observe.ledgers.traffic import record_traffic

VOCAB, HIDDEN, FFN, SEQUENCES, TOKENS = 12, 6, 12, 2, 6
KINDS = {"up": "cut", "down": "cut", "bias": "whole", "norm": "sequence", "embedding": "tied"}
FACTS = {
    "gradients": Fact(
        "the gradient of {}", "Afterwards every rank has its part of the gradient that one device computes: the "
        "gradient of the **mean loss over all targets of all data-parallel ranks**.", tolerance=1e-5, each="rank"),
    "calls": Fact("collectives of a rank", "at most three collectives of a rank: one along tp, one…", most=3),
}  # fmt: skip

# axes: pp, dp, tp; padded: of each data-parallel rank's 12 targets
Case = record("name axes padded")
CASES = [
    Case("tp 2", (1, 1, 2), (0,)),
    Case("dp 3, other numbers of targets", (1, 3, 1), (0, 5, 2)),
    Case("dp 2, one without a target", (1, 2, 1), (0, 12)),
    Case("3 stages", (3, 1, 1), (1,)),
    Case("tp 3", (1, 1, 3), (1,)),
    Case("tp 2, dp 2, pp 2", (2, 2, 2), (1, 7)),
]


def own_gradients(case: Case, stage: int, data: int, part: int) -> dict[str, Tensor]:
    """What backward leaves on one rank: gradients of the sum of its losses, by the names in ``KINDS``."""
    (stages, _, parts), draw = case.axes, torch.Generator().manual_seed(case.seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_()

    embedding, shapes = drawn(VOCAB, HIDDEN), {"up": (FFN, HIDDEN), "down": (FFN, HIDDEN), "bias": (HIDDEN,)}
    layers = [{name: drawn(*shape) for name, shape in shapes.items()} for _ in range(stages)]
    draw.manual_seed(case.seed + 1 + data)
    tokens, targets = torch.randint(VOCAB, (2, SEQUENCES, TOKENS), generator=draw)
    targets.view(-1)[torch.randperm(targets.numel(), generator=draw)[: case.padded[data]]] = -100
    ends = [embedding.detach().clone().requires_grad_() for _ in range(2)]  # as it reads, and as it writes
    x = ends[0][tokens]
    for layer in layers:
        layer["norm"] = torch.ones(parts, HIDDEN).double().requires_grad_()  # one for each part
        normed = F.layer_norm(x, (HIDDEN,)) * layer["norm"].repeat_interleave(TOKENS // parts, 0)
        x = x + torch.relu(normed @ layer["up"].T) @ layer["down"] + layer["bias"]
    F.cross_entropy((x @ ends[1].T).flatten(0, 1), targets.flatten(), reduction="sum").backward()
    own = {name: p.grad for name, p in layers[stage].items()} | {"norm": layers[stage]["norm"].grad[part]}
    if stage in (0, stages - 1):
        own["embedding"] = sum(ends[end].grad for end in {int(stage > 0), int(stage == stages - 1)})
    return {n: g.chunk(parts)[part].clone() if KINDS[n] in ("cut", "tied") else g for n, g in own.items()}


@on_ranks(FACTS, lambda case: dict(zip(("pp", "dp", "tp"), case.axes, strict=True)))
def observe(mesh: DeviceMesh, answer, case: Case) -> dict:
    groups = {"tp": mesh["tp"].get_group(), "dp": mesh["dp"].get_group(), "ends": None}
    if case.axes[0] > 1:
        for ends in zip(mesh.mesh[0].flatten().tolist(), mesh.mesh[-1].flatten().tolist(), strict=True):
            group = dist.new_group(list(ends))  # every rank makes every group
            groups["ends"] = group if dist.get_rank() in ends else groups["ends"]
    stage, data, part = mesh.get_coordinate()
    gradients = own_gradients(case, stage, data, part)
    names = list(gradients)
    with record_traffic() as log:
        answer(gradients, {n: KINDS[n] for n in names}, SEQUENCES * TOKENS - case.padded[data], groups)
    return {"gradients": {name: gradients.get(name) for name in names}, "calls": log.traffic.calls}


def faults_in_numbers(step) -> list[list[str]]:
    """Rows of a table: norms of gradients after ``step`` on rank 0 of 2 x 2 x 2, over those that are right."""
    ratios = []
    for padded in ((0, 0), (1, 7)):
        case = Case("", (2, 2, 2), padded, seed=12)
        got, want = (observe(f, case)["gradients"][0] for f in (step, material("12.4").solution))
        ratios.append({name: f"{got[name].norm() / want[name].norm():.3f}" for name in want})
    return [[f"{name} ({kind})", *(each[name] for each in ratios)] for name, kind in KINDS.items()]
