"""Steps with a loss scaler, some of which overflow, right or with one slip: 03.2."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from course_lib.grading.checks.memory_oracles import Watch

SCRIPT = "..x...xx....."  # a good step, or one that overflows
OVERFLOWS = {2: float("-inf"), 6: float("nan"), 7: float("inf")}  # what stands in the gradient then

SCALE_SLIPS = {
    "when an overflow does not set the count of good steps to 0": "keep",
    "when the count does not start again after the scale has doubled": "again",
    "when the count goes on after the scale has doubled, and so never equals `interval` again": "goes on",
    "when the scale doubles one good step too late": "late",
    "when the scale is not halved after an overflow": "no half",
    "when the scale never doubles": "no double",
    "when a skipped step is counted as a good one": "count all",
}
PATH_SLIPS = {
    "when the gradients are clipped before they are divided by the scale": "clip",
    "when the gradients are not divided by the scale": "unscale",
    "when the gradients are not clipped": "none",
    "when each tensor is clipped alone, and not all together": "each",
    "when a step that overflowed updates with gradients of zero, so that the momentum moves the weights": "momentum",
    "when gradients below `max_norm` are made larger": "stretch",
    "when the norm is that of the largest element, and not the root of the sum of squares": "largest",
    "when a parameter without a gradient gets one of zeros, so that the optimizer updates it": "zeros",
}
OVERFLOW_SLIPS = {
    "when only infinite elements are looked for, and not those that are not a number": "inf",
    "when only elements that are not a number are looked for, and not infinite ones": "nan",
    "when only the largest element is looked at, so that minus infinity is not found": "maximum",
    "when elements are compared with plus infinity only": "plus",
    "when only the first gradient is looked at": "first",
    "when only the last gradient is looked at": "last",
    "when an update is made whatever the gradients are": "always",
    "when the overflow is found, but the optimizer makes its update all the same": "found",
}


def play(
    step: Callable[..., Any],
    interval: int,
    shapes: Sequence[tuple[int, ...]],
    max_norm: float,
    seed: int,
    frozen: bool = False,
) -> tuple[Tensor, list[float], list[Any], int, list[Any]]:
    """Run the script: after each step the parameters, the scale, what was returned; the most numbers read; the counts.

    The optimizer has momentum and weight decay, so gradients of zero move a parameter, and none does not.
    """
    draw = torch.Generator().manual_seed(seed)
    parameters = [nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes]
    without = [nn.Parameter(torch.ones(2))] if frozen else []
    everything = [*without, *parameters]
    optimizer = torch.optim.SGD(everything, lr=0.1, momentum=0.9, weight_decay=0.1)
    state = {"scale": 1024.0, "good_steps": 0, "interval": interval}
    path, scales, returned, most, counts = [], [], [], 0, []
    size = 1e4 if max_norm > 1 else 1.0  # large gradients are no reason to skip
    for number, kind in enumerate(SCRIPT):
        for p in without:
            p.grad = None
        for p in parameters:
            p.grad = (1 + torch.rand(p.shape, generator=draw)) * size * state["scale"]
        if kind == "x":  # not always in the same tensor, and not always the same
            tensor, element, value = overflow(number, shapes)
            parameters[tensor].grad.view(-1)[element] = value
        with Watch() as watch:
            returned.append(step(list(everything), optimizer, state, max_norm))
        most = max(most, watch.numbers_read)
        path.append(torch.cat([p.detach().flatten() for p in everything]))
        scales.append(state["scale"])
        counts.append(state["good_steps"])
    return torch.stack(path), scales, returned, most, counts


def overflow(number: int, shapes: Sequence[tuple[int, ...]]) -> tuple[int, int, float]:
    """Which gradient overflows in a step that does, in which element, and what stands there."""
    tensor = number % len(shapes)
    return tensor, number % math.prod(shapes[tensor]), OVERFLOWS[number]


def told(path: Tensor, shapes: Sequence[tuple[int, ...]]) -> str:
    """After which step a parameter is not finite, and which gradient had overflowed in it."""
    number = int(path.isfinite().all(1).logical_not().nonzero()[0])
    text = f"after step {number + 1} a parameter is infinite or not a number"
    if SCRIPT[number] != "x":
        return text
    tensor, _, value = overflow(number, shapes)
    return f"{text}\n(gradient {tensor + 1} of {len(shapes)} has an element that is {value})"


def overflows(slip: str, *given: Any) -> tuple[list[bool], list[bool]]:
    path, _, returned, *_ = play(reference(slip), *given)
    return path.isfinite().all(1).tolist(), returned


def path_of(slip: str, *given: Any) -> Tensor:
    return play(reference(slip), *given)[0]


def scales_of(slip: str, *given: Any) -> list[float]:
    return play(reference(slip), *given)[1]


def counts_of(slip: str, *given: Any) -> list[int]:
    return play(reference(slip), *given)[4]


def reference(slip: str = "") -> Callable[..., bool]:
    """The update of exercise 03.2, right or with one slip."""

    def step(everything: list[Tensor], optimizer: Any, state: dict, max_norm: float) -> bool:
        parameters = [p for p in everything if p.grad is not None]
        if slip == "zeros":
            for p in everything:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        if slip == "clip":
            clip_grad_norm_(parameters, max_norm)
        looked_at = {"first": parameters[:1], "last": parameters[-1:], "always": []}.get(slip, parameters)
        finite = all(_finite(p.grad, slip) for p in looked_at)
        if finite or slip in ("momentum", "found"):
            for p in parameters:
                p.grad.div_(1.0 if slip == "unscale" else state["scale"])
                if slip == "momentum" and not finite:
                    p.grad.zero_()
            if slip in ("each", "stretch"):
                for some in [[p] for p in parameters] if slip == "each" else [parameters]:
                    norm = clip_grad_norm_(some, max_norm)
                    for p in some if slip == "stretch" else ():
                        p.grad.mul_(max(1.0, max_norm / norm.item()))
            elif slip not in ("clip", "none"):
                clip_grad_norm_(parameters, max_norm, float("inf") if slip == "largest" else 2.0)
            optimizer.step()
        if not finite:
            state["scale"] /= 1 if slip == "no half" else 2
            state["good_steps"] = state["good_steps"] + (slip == "count all") if slip in KEEPING else 0
            return False
        state["good_steps"] += 1
        at = state["interval"] + (slip == "late")
        if state["good_steps"] == at or (slip in ("again", "count all") and state["good_steps"] > at):
            state["scale"] *= 1 if slip == "no double" else 2
            state["good_steps"] = state["good_steps"] if slip in ("again", "goes on") else 0
        return True

    return step


def _finite(gradient: Tensor, slip: str) -> bool:
    bad = {
        "inf": gradient.isinf(),
        "nan": gradient.isnan(),
        "plus": gradient.isposinf(),
        "maximum": gradient.isposinf() | gradient.isnan(),
    }
    return not bad.get(slip, ~gradient.isfinite()).any()


KEEPING = ("keep", "count all")
