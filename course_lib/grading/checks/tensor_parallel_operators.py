"""Exercise 09.1: what the check runs on the ranks, what one device gives, and what each mistake would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.observe.ledgers.traffic import record_traffic

Own = Sequence[tuple[Tensor, Tensor]]  # for each rank its columns of one matrix and its rows of another


def crossed(
    f: Callable[..., Any],
    g: Callable[[Tensor], Tensor],
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    own: Own,
    weight: Tensor,
) -> dict[str, Any]:
    """A region that is entered by three tensors, of which ``shift`` needs no gradient."""
    x, scale = x.clone().requires_grad_(), scale.clone().requires_grad_()
    a, b = (t.clone().requires_grad_() for t in own[dist.get_rank()])
    given, kept = (x, scale, shift), [t.detach().clone() for t in (x, scale, shift)]
    seen: list[tuple[Tensor, Tensor]] = []  # gradients that `enter` gets, and as they were
    with record_traffic() as ahead:
        entered = f(*given)
        problem = _problem(entered, given)
        if problem:
            return {"problem": problem}
        entered_x, entered_scale, entered_shift = entered
        part = (F.gelu((entered_x * entered_scale + entered_shift) @ a) @ b).T.contiguous().T
        if entered_x.requires_grad:
            entered_x.register_hook(lambda gradient: seen.append((gradient, gradient.clone())))
        before = part.detach().clone()
        z = g(part)
    if not isinstance(z, Tensor):
        return {"problem": f"`leave` returns {type(z).__name__}, not a tensor"}
    changed = [] if part.equal(before) else ["the tensor that `leave` gets"]
    if not all(t.equal(k) for t, k in zip(given, kept, strict=True)):
        changed.append("a tensor that `enter` gets")
    upstream = weight.clone()
    with record_traffic() as back:
        if z.requires_grad:
            z.backward(upstream)
    if not upstream.equal(weight):
        changed.append("the gradient that `leave` gets")
    if not all(gradient.equal(was) for gradient, was in seen):
        changed.append("the gradient that `enter` gets")
    return {
        "problem": None,
        "z": z.detach().clone(),
        "x": _or_zero(x),
        "scale": _or_zero(scale),
        "own": torch.cat([_or_zero(a).flatten(), _or_zero(b).flatten()]),
        "changed": changed,
        "forward": (ahead.traffic.calls, ahead.traffic.sent),
        "backward": (back.traffic.calls, back.traffic.sent),
    }


def _problem(entered: Any, given: Sequence[Tensor]) -> str | None:
    if isinstance(entered, Tensor) or not hasattr(entered, "__len__"):
        return f"`enter` returns one {type(entered).__name__}"
    if len(entered) != len(given):
        return f"`enter` gets {len(given)} tensors and returns {len(entered)}"
    for i, (one, other) in enumerate(zip(entered, given, strict=True)):
        if not isinstance(one, Tensor) or one.shape != other.shape:
            return f"tensor {i} comes back as {getattr(one, 'shape', type(one).__name__)}"
    return None


def _or_zero(t: Tensor) -> Tensor:
    return torch.zeros_like(t) if t.grad is None else t.grad.detach().clone()


def _part(x: Tensor, scale: Tensor, shift: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.gelu((x * scale + shift) @ a) @ b


def _gradients(x: Tensor, scale: Tensor, shift: Tensor, own: Own, weight: Tensor) -> list[Tensor]:
    """Gradients of x, scale and of every rank's matrices, of the sum of these ranks' parts."""
    leaves = [t.clone().requires_grad_() for t in (x, scale, *(t for pair in own for t in pair))]
    x, scale, *matrices = leaves
    total = sum(_part(x, scale, shift, a, b) for a, b in zip(matrices[::2], matrices[1::2], strict=True))
    return list(torch.autograd.grad(total, leaves, weight))


def expected(x: Tensor, scale: Tensor, shift: Tensor, own: Own, weight: Tensor) -> dict[str, list[Tensor]]:
    """For each rank, what is right."""
    of_x, of_scale, *matrices = _gradients(x, scale, shift, own, weight)
    z, p = sum(_part(x, scale, shift, a, b) for a, b in own), len(own)
    flat = [torch.cat([a.flatten(), b.flatten()]) for a, b in zip(matrices[::2], matrices[1::2], strict=True)]
    return {"z": [z] * p, "x": [of_x] * p, "scale": [of_scale] * p, "own": flat}


def mistakes(
    x: Tensor, scale: Tensor, shift: Tensor, own: Own, weight: Tensor
) -> dict[str, dict[str, Callable[[], list[Tensor]]]]:
    """For each fact, programs of mistakes."""
    p = len(own)
    if p == 1:
        return {}
    parts = [_part(x, scale, shift, a, b) for a, b in own]
    alone = [_gradients(x, scale, shift, [pair], weight) for pair in own]
    entered_twice = [_part(p * x, p * scale, p * shift, a, b) for a, b in own]
    right = expected(x, scale, shift, own, weight)
    of_inputs = {
        name: {
            "when nothing is summed in the backward of `enter`": lambda i=i: [one[i] for one in alone],
            "when the backward of `enter` takes the mean over the ranks, and not the sum": (
                lambda i=i: [sum(one[i] for one in alone) / p] * p
            ),
            "when the gradient is lost on its way through `enter`": (
                lambda i=i: [torch.zeros_like(one[i]) for one in alone]
            ),
        }
        for i, name in enumerate(("x", "scale"))
    }
    return {
        "z": {
            "when nothing is summed in the forward of `leave`": lambda: parts,
            "when the forward of `leave` takes the mean over the ranks, and not the sum": (
                lambda: [sum(parts) / p] * p
            ),
            "when `enter` sums in forward": lambda: [sum(entered_twice)] * p,
        },
        **of_inputs,
        "own": {
            "when `leave` sums in backward": lambda: [p * one for one in right["own"]],
            "when the backward of `leave` divides by the number of ranks": lambda: [
                one / p for one in right["own"]
            ],
            "when the gradient is lost on its way through `leave`": (
                lambda: [torch.zeros_like(one) for one in right["own"]]
            ),
        },
    }
