"""10.2: the MLP region of a layer with sequence parallelism; what it keeps for backward and sends."""

import gc
import time

import torch
from course_checks.on_ranks import on_ranks
from course_checks.tensor_parallel import kind, own_group
from torch import Tensor, nn

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.alive import Alive
from course_lib.observe.ledgers.traffic import record_traffic

RESULT = "Return this rank's tokens of the result, (batch, seq/p, hidden)."
SAME = "The gradients of `x` and of every weight and bias are those of one device"
KEPT = "Besides `x` and the result a rank keeps only what GELU and `down` get"
SENT = "It sends at most three all-gathers and two reduce-scatters of the whole input in forward and…"
NAMES = ("x", "up.weight", "up.bias", "down.weight")
FACTS = {
    "shape": Fact("the result", RESULT, each="rank"),
    "result": Fact("the result", RESULT, tolerance=1e-5, each="rank"),
    **{name: Fact(f"the gradient of {name}", SAME, tolerance=1e-5, each="rank") for name in NAMES},
    "kept": Fact("bytes kept for backward beyond what GELU and down get", KEPT, most=0),
    "bytes": Fact("bytes sent beyond those collectives", SENT, most=0, beyond=True),
}
PATIENCE = 1.0  # seconds in which gloo's threads let go of what they sent

# ranks: of a group; own: tokens of a rank
Case = record("name world ranks", batch=2, own=3, frozen=False)
CASES = [
    Case("2 ranks", 2, 2),
    Case("2 ranks, one token each", 2, 2, 1, 1),
    Case("2 ranks, the weight of `up` is frozen", 2, 2, frozen=True),
    Case("2 ranks, each a group of its own", 2, 1),
    Case("3 ranks", 3, 3),
]


def drawn(case: Case) -> list[Tensor]:
    """x, the gradient of the result, and the whole of up.weight, up.bias and down.weight, in double precision."""
    draw, hidden, wide = torch.Generator().manual_seed(case.seed), 5, 4 * case.ranks
    whole = (case.batch, case.own * case.ranks, hidden)
    shapes = [whole, whole, (wide, hidden), (wide,), (hidden, wide)]
    return [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]


@on_ranks(FACTS, lambda case: case.world)
def observe(answer, case: Case) -> dict:
    group, p = own_group(case.ranks), case.ranks
    x, upstream, weight, bias, second = (
        t.chunk(p, dim)[group.rank()].clone() for t, dim in zip(drawn(case), (1, 1, 0, 0, 1), strict=True)
    )
    up, down = nn.Linear(*weight.T.shape), nn.Linear(*second.T.shape, bias=False)
    up.weight.data, up.bias.data, down.weight.data = weight, bias, second
    up.weight.requires_grad_(not case.frozen)
    x.requires_grad_()
    room = 2 * case.batch * case.own * p * len(weight) * x.itemsize  # what GELU and `down` get
    gc.collect()
    with record_traffic() as log:
        with Alive(x, *up.parameters(), *down.parameters()) as alive:
            out = answer(x, up, down, group)
        if not isinstance(out, Tensor) or out.shape != x.shape:
            return {"shape": f"the result is {kind(out)}, and x is {kind(x)}"}
        alive.made.pop(out.untyped_storage(), None)
        waited = time.monotonic() + PATIENCE
        while alive.now > room and time.monotonic() < waited:
            gc.collect()
            time.sleep(0.05)
        kept, result = alive.now, out.detach().clone()
        out.backward(upstream)
    gradients = (x.grad, up.weight.grad, up.bias.grad, down.weight.grad)
    return {
        "shape": "",
        "result": result,
        **dict(zip(NAMES, gradients, strict=True)),
        "kept": max(0, kept - room),
        "bytes": round(log.traffic.sent),
    }
