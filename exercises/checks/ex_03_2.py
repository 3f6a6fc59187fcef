"""03.2: steps with a loss scaler, some of which overflow, and the numbers that the CPU asks for."""

import math

import torch
from course_checks.on_ranks import count
from course_checks.where_memory_goes import Watch
from torch import nn

from course_lib.grading.judge import Fact, record

FACTS = {
    "finite": Fact("the parameters", "the parameters and the optimizer's state stay as they are"),
    "scales": Fact("the scale after each step", 'When `state["interval"]` updates in a row were made, the…'),
    "counts": Fact("`good_steps` after each step", "the scale doubles and the count starts again at 0, all…"),
    "path": Fact("the parameters after each step", tolerance=1e-5),
    "returned": Fact("what it returns", "Return whether an update was made, as True or False."),
    "read": Fact("numbers that the CPU asked for in a step", "in each step at most one number goes…", most=1),
}
SCRIPT = "..x...xx....."  # a good step, or one that overflows
OVERFLOWS = {2: -math.inf, 6: math.nan, 7: math.inf}  # what stands in the gradient then

# without: one more parameter, which has no gradient
Case = record(
    "interval shapes",
    lambda c: (
        f"interval {c.interval}, {count(len(c.shapes), 'tensor')}, "
        f"{'nothing' if c.max_norm > 1 else 'gradients'} to clip"
        + ", one more without a gradient"
        * c.without
    ),
    max_norm=0.5,
    without=False,
)
CASES = [
    Case(3, ((3, 2), (5,))),
    Case(2, ((4,), (2, 3), (1,))),
    Case(5, ((6,),), 1e8),
    Case(1, ((1,),)),
    Case(3, ((2, 2), (3,)), without=True),
]


def observe(step, case: Case) -> dict:
    """The optimizer has momentum and weight decay, so gradients of zero move a parameter, and none does not."""
    draw = torch.Generator().manual_seed(case.seed)
    parameters = [nn.Parameter(torch.randn(shape, generator=draw)) for shape in case.shapes]
    everything = [nn.Parameter(torch.ones(2))] * case.without + parameters
    optimizer = torch.optim.SGD(everything, lr=0.1, momentum=0.9, weight_decay=0.1)
    state: dict = {"scale": 1024.0, "good_steps": 0, "interval": case.interval}
    found: dict = {"finite": "", "scales": [], "counts": [], "path": [], "returned": [], "read": 0}
    size = 1e4 if case.max_norm > 1 else 1.0  # large gradients are no reason to skip
    for number, kind in enumerate(SCRIPT):
        everything[0].grad = None
        for p in parameters:
            p.grad = (1 + torch.rand(p.shape, generator=draw)) * size * state["scale"]
        tensor = number % len(parameters)  # not always in the same tensor, and not always in the same place
        if kind == "x":
            gradient = parameters[tensor].grad.view(-1)
            gradient[number % len(gradient)] = OVERFLOWS[number]
        with Watch() as watch:
            returned = step(list(everything), optimizer, state, case.max_norm)
        found["returned"].append(bool(returned))
        found["read"] = max(found["read"], watch.numbers_read)
        found["path"].append(torch.cat([p.detach().flatten() for p in everything]))
        found["scales"].append(state["scale"])
        found["counts"].append(state["good_steps"])
        if not found["finite"] and not found["path"][-1].isfinite().all():
            found["finite"] = f"after step {number + 1} a parameter is infinite or not a number"
            if kind == "x":
                where = f"gradient {tensor + 1} of {len(parameters)}"
                found["finite"] += f"\n({where} has an element that is {OVERFLOWS[number]})"
    return found | {"path": torch.stack(found["path"]), "trace": found["returned"]}
