"""The check of 08.1: backward through a chain, segment by segment, with runs and bytes counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from course_lib.grading.alive import Alive
from course_lib.grading.report import Report, check

Layer = Callable[[Tensor], Tensor]


class _Counted(nn.Module):
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


CHAINS = [(16, 4), (24, 12), (7, 3), (6, 1), (5, 8), (6, 6), (1, 1)]  # layers, and layers of a segment


@check
def check_08_1(
    report: Report, chain_backward: Callable[[Sequence[Layer], Tensor, Tensor, int], Tensor]
) -> None:
    torch.manual_seed(report.seed())
    for n, every in CHAINS:
        plural = "layer" if n == 1 else "layers"
        with report.case(f"{n} {plural}, every={every}"):
            _try_chain(report, chain_backward, n, every)


def _try_chain(report: Report, chain_backward: Callable, n: int, every: int) -> None:
    kept: list[int] = []  # bytes alive when a layer first runs with autograd
    layers = [_Counted(500, i, lambda: kept or kept.append(alive.now)) for i in range(n)]
    weights = [w for layer in layers for w in layer.parameters() if w.requires_grad]
    x, gradient = torch.randn(2, 500).unbind()
    for weight in weights:
        weight.grad = torch.ones_like(weight)  # of an earlier batch
    before = x.clone(), gradient.clone()
    with Alive(x, gradient, *weights) as alive:
        got = chain_backward(layers, x, gradient, every)
    runs = sum(layer.runs for layer in layers)
    found = [weight.grad for weight in weights]

    leaf = x.clone().requires_grad_()
    y = leaf
    for layer in layers:
        y = layer(y)
    want, *of_weights = torch.autograd.grad(y, [leaf, *weights], gradient)
    report.close(
        "the gradient of x",
        got,
        want,
        tolerance=1e-6,
        # Both end with the backward of the first segment; how many layers have run tells them apart.
        mistakes=WRONG_CHAINS | {OWN_GRADIENT if runs < 2 * n else ONLY_THE_FIRST: -math.inf},
        given=(layers, before[0], before[1], every),
        task="Return the gradient of the loss by `x`.",
    )
    report.true(
        all(g is not None for g in found),
        "every trained weight has a gradient",
        "a trained weight has no gradient",
        task="The gradient of a layer's weight is added to its `.grad`",
    )
    if weights:
        report.close(
            "the gradients of the weights",
            torch.stack(found),
            1 + torch.stack(of_weights),
            mistakes={
                "when no gradient is added to the weights": torch.ones_like(torch.stack(found)),
                "when what was in `.grad` before is lost": torch.stack(of_weights),
                "when each segment's backward runs twice": 1 + 2 * torch.stack(of_weights),
            },
            task="The gradient of a layer's weight is added to its `.grad`",
        )
    not_so = {
        "x has other values": not before[0].equal(x),
        "gradient has other values": not before[1].equal(gradient),
        "x requires a gradient now": x.requires_grad,
        "x has a `.grad` now": x.grad is not None,
    }
    report.true(
        not any(not_so.values()),
        "x and gradient are as they were",
        ", and ".join(fact for fact, found in not_so.items() if found),
        task="`x` and `gradient` stay as they are, and `x` gets no `.grad`.",
    )
    segments, first = -(-n // every), kept[0] if kept else 0
    all_inputs = n - 1 <= first / x.nbytes <= n + 1  # x itself is the caller's, and y may be there
    report.at_most(
        "bytes kept when a layer first runs with autograd",
        first,
        x.nbytes * (segments + 4),
        mistakes={"when the input of every layer is kept": first if all_inputs else None},
        task="Run forward without autograd and keep only the input of each segment.",
    )
    report.at_most("runs of layers", runs, 2 * n, task="No layer runs forward more than twice.")
    # Checkpoints; what autograd saves of one segment (at most two tensors a layer); the weights' new gradients.
    limit = x.nbytes * (segments + 2 * min(every, n) + 6 + len(weights))
    report.at_most(
        "bytes alive at once",
        alive.most,
        limit,
        task="Alive at once are the kept inputs, what autograd saves of one segment, and a handful of tensors.",
    )


def _chain(
    layers: Sequence[Layer],
    x: Tensor,
    gradient: Tensor,
    every: int,
    *,
    at_x: bool = False,
    upwards: bool = False,
    whole_only: bool = False,
    own_gradient: bool = False,
) -> Tensor:
    """Backward in segments, wrong in one thing."""
    inputs = [x]
    with torch.no_grad():
        for layer in layers:
            inputs.append(layer(inputs[-1]))
    starts = list(range(0, len(layers), every))
    if whole_only:
        starts = [start for start in starts if start + every <= len(layers)]
    flowing = gradient
    for start in starts if upwards else reversed(starts):
        leaf = (x if at_x else inputs[start]).detach().requires_grad_()
        y = leaf
        for layer in layers[start : start + every]:
            y = layer(y)
        flowing = torch.autograd.grad(y, leaf, gradient if own_gradient else flowing)[0]
    return flowing


OWN_GRADIENT = "when every segment gets the caller's gradient, and not that of the segment behind it"
ONLY_THE_FIRST = "when only the first segment runs again, with the caller's gradient"
WRONG_CHAINS = {
    "when every segment starts from x and not from its own input": lambda *given: _chain(*given, at_x=True),
    "when the segments are taken from the first to the last": lambda *given: _chain(*given, upwards=True),
    "when a shorter segment at the end is left out": lambda *given: _chain(*given, whole_only=True),
    OWN_GRADIENT: lambda *given: _chain(*given, own_gradient=True),
    ONLY_THE_FIRST: lambda *given: _chain(*given, own_gradient=True),
}
