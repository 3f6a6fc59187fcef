"""10.3: a layer with sequence parallelism; with dropout it is compared with one device that drops the same elements."""

import torch
from course_checks import sequence_layer  # noqa: F401 - the notebook measures with it
from course_checks.dropped_alike import with_dropout
from course_checks.sequence_layer import PARTS, gradients, make_layer
from course_checks.tensor_parallel import kind, own_group
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime.kept import launch

SAME = "computes what one device computes, up to the masks of dropout"
GRADIENT = "After backward every gradient is that of one device, on every rank"
MASKS = "Even so, every rank's mask is different, and so is the mask of every call."
SENT = "a call sends at most two all-gathers, two reduce-scatters and one all-reduce of 3 · hidden numbers."
FACTS = {
    "shape": Fact("the result", "Return this rank's tokens of the result.", each="rank"),
    "share": Fact("dropout", "`drop` is the probability that an element is set to zero"),
    "result": Fact("the result", SAME, tolerance=1e-5, each="rank"),
    **{part: Fact("the gradient of {}", GRADIENT, tolerance=1e-5, each="rank") for part in PARTS},
    "ranks": Fact("masks", MASKS),
    "calls": Fact("masks", MASKS),
    "again": Fact("masks", "as recomputation does, the same masks come again."),
    "state": Fact("state", "Afterwards the random state of PyTorch is again the same on all ranks."),
    "collectives": Fact("collectives beyond those needed", SENT, most=0, beyond=True),
    "bytes": Fact("bytes sent beyond those needed", SENT, most=0, beyond=True),
}

# ranks: of a group
Case = record("name world ranks", calls=1, drop=0.0, frozen=False)
CASES = [
    Case("2 ranks", 2, 2),
    Case("3 ranks, two calls", 3, 3, 2),
    Case("2 ranks, norm and bias are frozen", 2, 2, frozen=True),
    Case("2 ranks, two calls with dropout", 2, 2, 2, 0.4),
    Case("3 ranks, two calls with dropout", 3, 3, 2, 0.4),
    Case("2 ranks, each a group of its own, with dropout", 2, 1, 1, 0.4),
]


def drawn(case: Case) -> tuple[object, list[Tensor], list[Tensor]]:
    """The whole layer, and for each call the whole input and the gradient of the result."""
    draw, shape = torch.Generator().manual_seed(case.seed), (2, case.calls, 4, 8 * case.ranks, 16)
    xs, upstream = torch.randn(shape, generator=draw, dtype=torch.float64)
    return make_layer(16, 12 * case.ranks, case.seed), list(xs), list(upstream)


def on_rank(answer, case: Case) -> dict:
    group, (layer, xs, upstream) = own_group(case.ranks), drawn(case)
    p, me = group.size(), group.rank()
    own, inputs = layer.part_of(me, p, case.frozen), [x.chunk(p, 1)[me].clone().requires_grad_() for x in xs]
    torch.manual_seed(5)
    with record_traffic() as log:
        outs = [answer(x, own, group, case.drop) for x in inputs]
        if not all(isinstance(out, Tensor) and out.shape == inputs[0].shape for out in outs):
            return {"shape": f"the result is {kind(outs[0])}, and this rank's tokens are {kind(inputs[0])}"}
        state = torch.get_rng_state()
        torch.autograd.backward(outs, [u.chunk(p, 1)[me] for u in upstream])
    torch.manual_seed(5)  # as recomputation does
    again = [answer(x.detach(), own, group, case.drop).detach() for x in inputs]
    return {
        "shape": "",
        "result": torch.cat([out.detach() for out in outs]),
        **gradients(own, inputs),
        "dropped": [out.detach() == x.detach() for out, x in zip(outs, inputs, strict=True)],
        "again": all(map(torch.equal, again, outs)),
        "state": state,
        "collectives": log.traffic.calls,
        "bytes": round(log.traffic.sent),
    }


def observe(answer, case: Case) -> dict:
    seen = launch(on_rank, case.world, args=(answer, case), backend="gloo", timeout=60.0)[: case.ranks]
    if any("result" not in one for one in seen):
        return {"shape": [one["shape"] for one in seen]}
    found = {key: [one[key] for one in seen] for key in ("shape", "result", *PARTS)}
    found |= with_dropout(*drawn(case), case.drop, seen)
    again, agree = all(o["again"] for o in seen), all(o["state"].equal(seen[0]["state"]) for o in seen)
    return found | {
        "again": "" if again else "with the same random state other places are dropped",
        "state": "" if agree else "afterwards the ranks have different random states",
        "collectives": seen[0]["collectives"],
        "bytes": max(one["bytes"] for one in seen),
    }
