"""The check of exercise 05.2: gradients that are averaged while backward runs, on ranks, beside likely mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.data_parallel.ddp import assign_buckets
from course_lib.grading.checks.ddp_ranks import flat, generator_of, report_missing, without_gradient
from course_lib.grading.report import Report
from course_lib.observe.ledgers.traffic import record_traffic

CASES = {  # how the buckets become complete -> words for it
    "plain": "",
    "crossed": ", in different orders",
    "earlier": ", gradients from an earlier backward pass",
    "frozen": ", a frozen layer",
    "swapped": ", the second bucket complete before the first",
}

# ---- what runs on the ranks -----------------------------------------------------------------------------------


class Chain(nn.Module):
    """Six layers in two halves, which may be computed in either order."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.left = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.right = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, crossed: bool) -> Tensor:
        halves = [self.left, self.right]
        if not crossed:  # one after the other
            for layer in [*self.left, *self.right]:
                x = torch.tanh(layer(x))
            return x
        out = []
        for half in halves if dist.get_rank() == 0 else halves[::-1]:
            y = x
            for layer in half:
                y = torch.tanh(layer(y))
            out.append(y * (1 if half is self.left else 2))
        return out[0] + out[1]


def overlap(answer: Callable, limit: int, how: str, seed: int) -> dict[str, Any]:
    """Two steps of the answer on this rank: gradients, messages, and when each of them was issued."""
    rank = dist.get_rank()
    model, crossed = Chain(seed), how == "crossed"
    if how == "frozen":
        model.right[1].requires_grad_(False)
    parameters = [p for p in model.parameters() if p.requires_grad]
    buckets = assign_buckets(parameters, limit)
    if how == "swapped":
        buckets[:2] = buckets[1], buckets[0]
    steps, given_buckets = [], [list(bucket) for bucket in buckets]  # the same lists in every step
    for step in range(2):
        inputs = torch.randn(4, 8, generator=generator_of(seed + 10 * rank + step))

        def loss(inputs: Tensor = inputs) -> Tensor:
            return model(inputs, crossed).square().sum()

        own = torch.autograd.grad(loss(), parameters)
        before = [
            torch.full_like(p, rank + 1.0) if how == "earlier" else torch.zeros_like(p) for p in parameters
        ]
        for p, g in zip(parameters, before, strict=True):
            p.grad = g.clone() if how == "earlier" else None
        ready: list[int] = []  # parameters whose gradients are there, in order
        issued: list[tuple[int, bool]] = []  # how many were there when a message began, and whether it blocks
        original = dist.all_reduce

        def watched(*given: Any, _to=issued, _ready=ready, _all_reduce=original, **named: Any) -> Any:
            _to.append((len(_ready), not (given[3] if len(given) > 3 else named.get("async_op", False))))
            return _all_reduce(*given, **named)

        hooks = [
            p.register_post_accumulate_grad_hook(lambda p, to=ready: to.append(id(p))) for p in parameters
        ]
        with record_traffic() as log, mock.patch.object(dist, "all_reduce", watched):
            answer(loss(), given_buckets)
        kept = sum(
            hook.id in (p._post_accumulate_grad_hooks or {})
            for hook, p in zip(hooks, parameters, strict=True)
        )
        complete = [max(ready.index(id(p)) + 1 for p in bucket) for bucket in buckets if ready]
        fired = len(ready)
        for hook in hooks:
            hook.remove()
        steps.append(
            {
                "gradients": flat([p.grad for p in parameters], parameters),
                "missing": without_gradient(model),
                "own": flat(own, parameters),
                "before": flat(before, parameters),
                "first": torch.cat([torch.full((p.numel(),), id(p) in ready[:1]) for p in parameters]),
                "messages": log.traffic.calls,
                **_waits(complete, [found for found, _ in issued], len(parameters)),
                "blocking": sum(blocks for found, blocks in issued if found < len(parameters)),
                "order": sorted(range(len(complete)), key=complete.__getitem__),
                "fired": fired,
                "kept": kept,
                "left": sum(map(_hooks_of, parameters)),
            }
        )
    begins = {p: sum(q.numel() for q in parameters[:place]) for place, p in enumerate(parameters)}
    places = [torch.cat([begins[p] + torch.arange(p.numel()) for p in bucket]) for bucket in buckets]
    return {"buckets": len(buckets), "parameters": len(parameters), "places": places, "steps": steps}


def _hooks_of(p: Tensor) -> int:
    return len(p._post_accumulate_grad_hooks or ()) + len(p._backward_hooks or ())


def _waits(complete: Sequence[int], issued: Sequence[int], last: int) -> dict[str, Any]:
    """For how many gradients complete buckets waited, in the answer ("late") and by mistakes.

    Args:
        complete: by bucket, after how many gradients it was complete.
        issued: by message, after how many gradients it began.
        last: the number of all gradients.
    """
    due = [max(complete[: i + 1]) for i in range(len(complete))]
    own_turn = one_a_call = 0  # buckets sent so far
    late = 0
    for now in range(1, last + 1):
        if now in complete and complete.index(now) == own_turn:
            own_turn += 1
        if one_a_call < len(due) and due[one_a_call] <= now:
            late += now - due[one_a_call]
            one_a_call += 1
    return {
        "late": sum(max(0, found - end) for found, end in zip(issued, due, strict=False)),
        "late by mistake": {
            "when all buckets are sent after backward": sum(last - end for end in due),
            "when a bucket that was complete before an earlier one is sent after backward": sum(
                last - end for end in due[own_turn:]
            ),
            "when each call of the hook sends at most one bucket": late
            + sum(last - end for end in due[one_a_call:]),
        },
    }


# ---- likely mistakes: `own` and `before` hold each rank's gradients of this backward pass and of an earlier one;
# ---- `orders` the order in which each rank completed the buckets, `places` where each bucket's gradients are,
# ---- and `first` marks the gradient that each rank completed first -----------------------------------------------

Ranks = Sequence[Tensor]
Orders = Sequence[Sequence[int]]


def averages(own: Ranks, before: Ranks) -> list[Tensor]:
    return [(sum(own) + sum(before)) / len(own)] * len(own)


def _as_completed(own: Ranks, before: Ranks, orders: Orders, places: Ranks, first: Ranks) -> list[Tensor]:
    """Each rank's n-th message is the bucket that it completes n-th; impossible if two of these differ in size."""
    after = [a + b for a, b in zip(own, before, strict=True)]
    for sent in zip(*orders, strict=True):
        where = [places[bucket] for bucket in sent]
        average = sum((a + b)[at] for a, b, at in zip(own, before, where, strict=True)) / len(own)
        for gradients, at in zip(after, where, strict=True):
            gradients[at] = average
    return after


def _not_none(own: Ranks, before: Ranks, orders: Orders, places: Ranks, first: Ranks) -> list[Tensor]:
    """All buckets are sent when the first gradient is written: the others are those of the earlier pass."""
    if not any(b.any() for b in before):
        return averages(own, before)
    return averages([torch.where(f, g, 0) for f, g in zip(first, own, strict=True)], before)


AVERAGES: dict[str, Callable[..., list[Tensor]]] = {
    "when the sum is not divided by the number of ranks": lambda own, before, *_: (
        [sum(own) + sum(before)] * len(own)
    ),
    "when it is divided by the number of ranks twice": lambda own, before, *_: (
        [(sum(own) + sum(before)) / len(own) ** 2] * len(own)
    ),
    "when the averages are not put into `.grad`: each rank keeps its own gradients": lambda own, before, *_: [
        a + b for a, b in zip(own, before, strict=True)
    ],
    "when each rank divides its own gradients and does not add the others'": lambda own, before, *_: [
        (a + b) / len(own) for a, b in zip(own, before, strict=True)
    ],
    "when the gradients of an earlier backward pass are lost": lambda own, before, *_: (
        [sum(own) / len(own)] * len(own)
    ),
    "when the gradients of an earlier backward pass are not averaged, and each rank adds its own": (
        lambda own, before, *_: [sum(own) / len(own) + b for b in before]
    ),
    "when a gradient counts as complete because `.grad` is not None: an earlier backward pass has left one": (
        _not_none
    ),
    "when each rank sends its buckets in the order in which it completes them": _as_completed,
}

# ---- the check ------------------------------------------------------------------------------------------------


def check_hooks(report: Report, found: Sequence[dict[str, Any]], expected: int) -> None:
    """The caller's hooks were called and are still there, and those of the answer are gone."""
    stay = "Hooks that the parameters have already stay"
    fired, kept = (min(one[key] for one in found) for key in ("fired", "kept"))
    left = max(one["left"] for one in found)
    of = f"of {expected} hooks of the caller"
    for holds, fact, otherwise, task in (
        (fired == expected, "hooks of the caller are called", f"{of} {fired} were called", stay),
        (
            kept == expected,
            "hooks of the caller stay",
            f"{of} {kept} are left when the function has returned",
            stay,
        ),
        (
            left == 0,
            "no hook of the answer is left",
            f"{left} hooks of the answer are left on the parameters",
            "the hooks that you add are removed",
        ),
    ):
        report.true(holds, fact, otherwise, task=task)


def check_overlap(report: Report, results: Sequence[dict[str, Any]]) -> None:
    """What the ranks have found in two steps: averages, hooks, and when the messages began."""
    parameters = results[0]["parameters"]
    for step in range(2):
        found = [rank["steps"][step] for rank in results]
        given = [[one[key] for one in found] for key in ("own", "before", "order", "first")]
        own, before, orders, first = given
        task = "every `.grad` holds its mean over the ranks"
        report_missing(report, found, task)
        report.on_every_rank(
            "averages of the second step" if step else "averages",
            [one["gradients"] for one in found],
            averages(own, before),
            mistakes=AVERAGES,
            given=(own, before, orders, results[0]["places"], first),
            task=task,
        )
        check_hooks(report, found, parameters)
    steps = [step for rank in results for step in rank["steps"]]
    target = (
        "One all-reduce for each bucket, started with `async_op=True` as soon as this bucket and all before "
        "it are complete."
    )
    report.at_most(
        "messages of a step",
        max(s["messages"] for s in steps),
        results[0]["buckets"],
        mistakes={"when each gradient has an all-reduce of its own": parameters},
        task=target,
    )
    report.at_most(
        "gradients that a complete bucket waited for",
        max(s["late"] for s in steps),
        0,
        mistakes={
            text: max(s["late by mistake"][text] for s in steps) for text in steps[0]["late by mistake"]
        },
        task=target,
    )
    report.at_most("all-reduces that stop backward", max(s["blocking"] for s in steps), 0, task=target)
