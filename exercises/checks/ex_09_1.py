"""09.1: a region that three tensors enter, one of them frozen, and whose sum leaves it."""

import torch
import torch.distributed as dist
from course_checks.on_ranks import count, on_ranks
from course_checks.tensor_parallel import grad, kind
from torch import Tensor
from torch.nn.functional import gelu

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic

SUM = "In forward it returns the sum of the ranks' tensors."
PASSED = "In backward it passes the gradient on as it is."
SUMMED = "In backward the gradients of all others are summed over the ranks."
MESSAGES = "one all-reduce in forward and one in backward."
NEEDED = "The one in backward carries no more numbers than the tensors have that need a gradient."
FACTS = {
    "entered": Fact("tensors", "It returns a tuple with as many tensors as it got, with the same values.", each="rank"),
    "left": Fact("the tensor", SUM, each="rank"),
    "sum": Fact("the output", SUM, tolerance=1e-4, each="rank"),
    "own": Fact("the gradient of {}", PASSED, tolerance=1e-4, each="rank"),
    "gradients": Fact("the gradient of the {}", SUMMED, tolerance=1e-4, each="rank"),
    "changed": Fact("tensors", "neither operator changes a tensor that it gets, also not a gradient.", each="rank"),
    "forward": Fact("collectives in forward", MESSAGES, most=1),
    "backward": Fact("collectives in backward", MESSAGES, most=1),
    "bytes": Fact("bytes sent in backward beyond the gradients that are needed", NEEDED, most=0, beyond=True),
}  # fmt: skip

Case = record(
    "ranks tokens hidden frozen",
    lambda c: f"{count(c.ranks)}, {count(c.tokens, 'token')} of {c.hidden}, a frozen {c.frozen}",
)
CASES = [Case(2, 5, 4, "shift"), Case(3, 4, 3, "scale"), Case(4, 1, 1, "shift"), Case(1, 3, 2, "input")]


@on_ranks(FACTS)
def observe(answers, case: Case) -> dict:
    (enter, leave), hidden, watched = answers, case.hidden, []
    draw, mine = (torch.Generator().manual_seed(case.seed + i) for i in (0, 1 + dist.get_rank()))
    shapes = {"input": (case.tokens, hidden), "scale": (hidden,), "shift": (hidden,)}
    given = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    up, down = (torch.randn(s, generator=mine).requires_grad_() for s in ((hidden, 2), (2, hidden)))
    upstream, alone = torch.randn(shapes["input"], generator=draw), torch.ones(2, requires_grad=True)

    def watch(what: str, t: Tensor) -> None:
        watched.append((what, t, t.detach().clone()))

    for name, t in given.items():
        watch("a tensor that `enter` gets", t.requires_grad_(name != case.frozen))
    with record_traffic() as ahead:
        entered = enter(*given.values())
        if said := problem(entered, [*given.values()]) or problem(enter(alone), [alone]):
            return {"entered": said}
        x, scale, shift = entered
        if x.requires_grad:
            x.register_hook(lambda gradient: watch("the gradient that `enter` gets", gradient))
        part = (gelu((x * scale + shift) @ up) @ down).T.contiguous().T
        watch("the tensor that `leave` gets", part)
        total = leave(part)
    if not isinstance(total, Tensor) or total.shape != part.shape:
        return {"left": f"`leave` gets {kind(part)} and returns {kind(total)}"}
    watch("the gradient that `leave` gets", upstream)
    found = {"sum": total.detach().clone(), "forward": ahead.traffic.calls}
    with record_traffic() as back:
        if total.requires_grad:
            total.backward(upstream)
    changed = next((what for what, t, before in watched if not t.equal(before)), "")
    return found | {
        "own": {"this rank's columns": grad(up), "this rank's rows": grad(down)},
        "gradients": {name: grad(t) for name, t in given.items() if name != case.frozen},
        "changed": changed and f"{changed} is changed in place, and others may still need it",
        "backward": back.traffic.calls,
        "bytes": round(back.traffic.sent),
    }


def problem(entered, given: list[Tensor]) -> str:
    if not isinstance(entered, tuple | list):
        return f"`enter` gets {count(len(given), 'tensor')} and returns one {type(entered).__name__}"
    if len(entered) != len(given):
        return f"`enter` gets {count(len(given), 'tensor')} and returns {len(entered)}"
    alike = [isinstance(e, Tensor) and t.equal(e) for t, e in zip(given, entered, strict=True)]
    return "" if all(alike) else f"tensor {alike.index(False)} of {len(given)} comes back as another one"
