"""12.3: one norm over three dimensions, on real ranks."""

import torch
from course_checks.on_ranks import on_ranks
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic

CUT, TIED = {"embedding", "up", "down"}, {"embedding"}
ROWS, WIDTH = 12, 6  # of the matrices: 12 rows can be cut by 2 and by 3
TARGET = "one all-reduce of one number of at most 8 bytes."
FACTS = {
    "kept": Fact("the gradients", "The gradients are not changed by the function.", each="rank"),
    "norm": Fact("the norm", "Return the norm of the whole gradient, the…", tolerance=1e-3, each="rank"),
    "sent": Fact("what is sent", "Gradients are large: no rank sends its gradients.", each="rank"),
    "calls": Fact("collectives of a rank", TARGET, most=1),
    "bytes": Fact("bytes in them", TARGET, most=8),
}

# axes: pp, dp, tp; size: about that of an element; empty: a stage without gradients
Case = record("name axes", dtype=torch.float32, size=1.0, empty=None)
CASES = [
    Case("tp 2", (1, 1, 2)),
    Case("tp 3", (1, 1, 3)),
    Case("3 stages, the one in the middle has no gradients", (3, 1, 1), empty=1),
    Case("tp 2, dp 2, pp 2", (2, 2, 2)),
    Case("tp 2, dp 2, large gradients in float16", (1, 2, 2), torch.float16, 100.0),
]


def whole_gradients(case: Case) -> list[dict[str, Tensor]]:
    """Of each stage, by name; tensor parallelism cuts the rows of matrices."""
    generator, stages = torch.Generator().manual_seed(case.seed), case.axes[0]

    def drawn(*shape: int) -> Tensor:
        return (case.size * torch.randn(shape, generator=generator)).to(case.dtype)

    embedding, found = {"embedding": drawn(2 * ROWS, WIDTH)}, []
    for stage in range(stages):
        own = {"norm": drawn(WIDTH), "up": drawn(ROWS, WIDTH), "bias": drawn(WIDTH), "down": drawn(ROWS, 2)}
        own |= embedding if stage in (0, stages - 1) else {}
        found.append({} if stage == case.empty else own)
    return found


@on_ranks(FACTS, lambda case: dict(zip(("pp", "dp", "tp"), case.axes, strict=True)))
def observe(mesh: DeviceMesh, answer, case: Case) -> dict:
    stage, _, part = mesh.get_coordinate()
    whole = whole_gradients(case)[stage]
    before = {name: g.chunk(case.axes[2])[part] if name in CUT else g for name, g in whole.items()}
    own = {name: gradient.clone() for name, gradient in before.items()}
    with record_traffic() as log:
        norm = answer(own, set(CUT), set(TIED), mesh)
    changed = [name for name, g in before.items() if name not in own or not torch.equal(own[name], g)]
    held, sent = sum(g.nbytes for g in before.values()), sum(row.payload for row in log.traffic.rows)
    said = f"collectives carry {sent:,} bytes, and the gradients have {held:,}"
    return {
        "kept": f"the gradient of {changed[0]} has other values than before" if changed else "",
        "norm": norm.item() if isinstance(norm, Tensor) and norm.numel() == 1 else norm,
        "sent": said if sent >= held > 0 else "",
        "calls": log.traffic.calls,
        "bytes": sent,
    }
