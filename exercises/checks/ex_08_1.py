"""08.1: backward through a chain, segment by segment, with runs and bytes counted."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.alive import Alive

ALIVE = "Besides the gradients of weights, at most as many tensors like `x` are alive at once as there are…"
BEGINS = "When backward begins, at most 4 tensors like `x` are alive besides the inputs of the segments."
FACTS = {
    "x": Fact("the gradient of x", "Return the gradient of the loss by `x`.", tolerance=1e-6),
    "weights": Fact("the gradient of {}", "The gradient of a layer's weight is added to…", tolerance=1e-5),
    "kept": Fact("inputs", "`x` and `gradient` stay as they are, and `x` gets no `.grad`."),
    "first": Fact("bytes kept for backward beyond the input of each segment and 4 tensors", BEGINS, most=0),
    "runs": Fact("runs beyond 2 of each layer", "No layer runs forward more than twice.", most=0),
    "bytes": Fact("bytes alive at once beyond those needed", ALIVE, most=0),
}


class Counted(nn.Module):
    """A layer that counts how often it ran. Layers with weights and without stand in turn."""

    def __init__(self, width: int, number: int, again: Callable[[], None]) -> None:
        super().__init__()
        self.factor, self.runs, self.again = 0.5 + number / 16, 0, again
        self.weight = nn.Parameter(torch.randn(width)) if number % 2 else None
        if number == 3:
            self.weight.requires_grad_(False)  # a frozen layer

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        if torch.is_grad_enabled():
            self.again()
        y = (self.factor * x).sin().roll(1)  # so that layers do not commute
        return y if self.weight is None else self.weight * y


Case = record("layers every", lambda c: f"{c.layers} layer{'s' * (c.layers > 1)}, every={c.every}")
CASES = [Case(*c) for c in [(16, 4), (24, 12), (7, 3), (6, 1), (5, 8), (6, 6), (1, 1)]]


def observe(chain_backward, case: Case) -> dict:
    torch.manual_seed(case.seed)
    kept: list[int] = []  # bytes alive when a layer first runs with autograd
    layers = [Counted(500, i, lambda: kept or kept.append(alive.now)) for i in range(case.layers)]
    trained = {f"the weight of layer {i}": layer.weight for i, layer in enumerate(layers)}
    trained = {name: w for name, w in trained.items() if w is not None and w.requires_grad}
    x, gradient = torch.randn(2, 500).unbind()
    for weight in trained.values():
        weight.grad = torch.ones_like(weight)  # of an earlier batch
    before = x.clone(), gradient.clone()
    with Alive(x, gradient, *trained.values()) as alive:
        got = chain_backward(layers, x, gradient, case.every)
    not_so = {
        "x has other values": not before[0].equal(x),
        "gradient has other values": not before[1].equal(gradient),
        "x requires a gradient now": x.requires_grad,
        "x has a `.grad` now": x.grad is not None,
    }
    segments, runs = -(-case.layers // case.every), sum(layer.runs for layer in layers)
    # The kept inputs; what autograd saves of one segment (at most two tensors a layer); the weights' gradients.
    room = x.nbytes * (segments + 2 * case.every + 6 + len(trained))
    return {
        "x": got,
        "weights": {name: weight.grad for name, weight in trained.items()},
        "kept": ", and ".join(fact for fact, found in not_so.items() if found),
        "first": max(0, (kept[0] if kept else 0) - x.nbytes * (segments + 4)),
        "runs": max(0, runs - 2 * case.layers),
        "bytes": max(0, alive.most - room),
        "trace": runs,
    }
