"""The checks of chapter 08: backward through a chain in segments, and where to cut it.

Those of the checkpoint and of PyTorch's own stand in ``recomputation_checkpoint`` and ``recomputation_policy``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from course_lib.grading.checks.recomputation_checkpoint import Alive
from course_lib.grading.report import Report, check
from simulator.inputs.chunks import chunk_sizes
from simulator.predict.recomputation import Segment, least_peak, peak_bytes

Layer = Callable[[Tensor], Tensor]


class _Counted(nn.Module):
    """A layer that counts how often it ran. Layers with weights and without stand in turn."""

    def __init__(self, width: int, number: int) -> None:
        super().__init__()
        self.factor, self.runs = 0.5 + number / 16, 0
        self.weight = nn.Parameter(torch.randn(width)) if number % 2 else None
        if number == 3:
            self.weight.requires_grad_(False)  # a frozen layer

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        y = (self.factor * x).sin().roll(1)  # so that layers do not commute
        return y if self.weight is None else self.weight * y


CHAINS = [(16, 4), (7, 3), (6, 1), (5, 8), (6, 6), (1, 1)]


@check
def check_08_1(
    report: Report, chain_backward: Callable[[Sequence[Layer], Tensor, Tensor, int], Tensor]
) -> None:
    torch.manual_seed(report.seed())
    for n, every in CHAINS:
        plural = "layer" if n == 1 else "layers"
        with report.case(f"{n} {plural}, a checkpoint every {every}"):
            _try_chain(report, chain_backward, n, every)


def _try_chain(report: Report, chain_backward: Callable, n: int, every: int) -> None:
    layers = [_Counted(500, i) for i in range(n)]
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
        mistakes=WRONG_CHAINS,
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
    report.true(
        before[0].equal(x) and before[1].equal(gradient) and x.grad is None and not x.requires_grad,
        "x and gradient are as they were",
        "x or gradient has changed, or x requires a gradient now, or has one",
        task="`x` and `gradient` stay as they are, and `x` gets no `.grad`.",
    )
    report.at_most("runs of layers", runs, 2 * n, task="No layer runs forward more than twice.")
    # Checkpoints; what autograd saves of one segment (at most two tensors a layer); the weights' new gradients.
    limit = x.nbytes * (-(-n // every) + 2 * min(every, n) + 6 + len(weights))
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


WRONG_CHAINS = {
    "when every segment starts from x and not from its own input": lambda *given: _chain(*given, at_x=True),
    "when the segments are taken from the first to the last": lambda *given: _chain(*given, upwards=True),
    "when a shorter segment at the end is left out": lambda *given: _chain(*given, whole_only=True),
    "when every segment gets the caller's gradient, and not that of the segment behind it": lambda *given: (
        _chain(*given, own_gradient=True)
    ),
}


# ---- 08.3: where to cut -----------------------------------------------------------------------------------


def _peak(starts: Sequence[int], kept: Sequence[float], saved: Sequence[float]) -> int:
    ends = [*starts[1:], len(saved)]
    return int(peak_bytes([Segment(kept[i], sum(saved[i:k])) for i, k in zip(starts, ends, strict=True)]))


@check
def check_08_3(report: Report, cut: Callable[[list[int], list[int]], list[int]]) -> None:
    draw = random.Random(83)
    chains = {}
    for n in (9, 12, 40):
        chains[f"{n} unequal layers"] = (
            [draw.randint(1, 30) for _ in range(n)],
            [draw.choice((5, 10, 20, 90)) for _ in range(n)],
        )
    chains |= {"16 equal layers": ([8] * 16, [8] * 16), "one layer": ([5], [7])}
    # A network that narrows: inputs shrink from layer to layer, as in a ResNet.
    chains["12 layers that shrink"] = (
        [2 ** (6 - i // 2) for i in range(12)],
        [2 ** (7 - i // 2) for i in range(12)],
    )
    chains["a large layer in the middle"] = ([1] * 9, [2, 2, 2, 2, 100, 2, 2, 2, 2])
    for name, (kept, saved) in chains.items():
        with report.case(name):
            _try_cut(report, cut, kept, saved)


def _try_cut(report: Report, cut: Callable, kept: list[int], saved: list[int]) -> None:
    n = len(saved)
    starts = cut(list(kept), list(saved))
    task = "Return the numbers of the layers at which segments begin, rising, the first of them 0."
    if not isinstance(starts, list | tuple) or not all(isinstance(i, int) for i in starts):
        report.fail(f"the result is {starts!r:.80}, not a list of whole numbers", task=task)
    starts = list(starts)
    if not starts or starts[0] != 0:
        report.fail(f"the segments begin at {_short(starts)}, and none begins at layer 0", task=task)
    if starts != sorted(set(starts)):
        report.fail(f"the segments begin at {_short(starts)}, which does not rise", task=task)
    if starts[-1] >= n:
        report.fail(f"the last segment begins at {starts[-1]}, and the last layer is {n - 1}", task=task)
    report.ok("the segments cover the chain")
    root = round(n**0.5)
    sizes = chunk_sizes(n, root)
    report.at_most(
        "peak",
        _peak(starts, kept, saved),
        int(least_peak(kept, saved)),
        mistakes={
            "when every layer is a segment of its own": _peak(range(n), kept, saved),
            "when the whole chain is one segment": _peak([0], kept, saved),
            "when the chain is cut into √n equal segments": _peak(
                [sum(sizes[:i]) for i in range(root)], kept, saved
            ),
        },
        task="The peak is the least of all possible cuts.",
    )


def _short(starts: Sequence[int]) -> str:
    return ", ".join(map(str, starts[:8])) + (", …" if len(starts) > 8 else "") or "no layer"
