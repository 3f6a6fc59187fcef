"""The checks of chapter 03 that play training steps: a loss scaler, and fp16 with PyTorch's own tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from course_lib.grading.checks.memory_fp16 import FP16, Batch, Played, play_fp16, right_step
from course_lib.grading.checks.memory_oracles import Watch
from course_lib.grading.report import Report, check

# ---- 03.2: loss scaling -----------------------------------------------------------------------------------

SCRIPT = "..x...xx....."  # a good step, or one that overflows


@check
def check_03_2(report: Report, scaled_step: Callable[..., bool]) -> None:
    cases = [
        (3, [(3, 2), (5,)], 0.5),
        (2, [(4,), (2, 3), (1,)], 0.5),
        (5, [(6,)], 1e6),
        (1, [(1,)], 0.5),
        (3, [(2, 2), (3,)], 0.5),
    ]
    for number, (interval, shapes, max_norm) in enumerate(cases):
        frozen = number == len(cases) - 1
        clips = "nothing to clip" if max_norm > 1 else "gradients to clip"
        name = f"interval {interval}, {len(shapes)} tensor{'s' * (len(shapes) > 1)}, {clips}"
        with report.case(f"{name}, one more without a gradient" if frozen else name):
            given = (interval, shapes, max_norm, report.seed(), frozen)
            path, scales, returned, most = play(scaled_step, *given)
            right = play(reference(), *given)
            report.true(
                bool(path.isfinite().all()),
                f"{SCRIPT.count('x')} of {len(SCRIPT)} steps overflow, and every parameter stays finite",
                "a parameter is infinite or not a number after a step that overflowed",
                task="the parameters and the optimizer's state stay as they are",
            )
            report.equal(
                "the scale after each step",
                scales,
                right[1],
                mistakes={text: partial(_scales, slip) for text, slip in SCALE_SLIPS.items()},
                given=given,
                task="updates in a row were made, the scale doubles and the count starts again at 0",
            )
            report.close(
                "the parameters after each step",
                path,
                right[0],
                mistakes={text: partial(_path, slip) for text, slip in PATH_SLIPS.items()},
                given=given,
            )
            answers = [bool(r) for r in returned]
            report.equal(
                "what it returns",
                answers,
                right[2],
                mistakes={
                    "when it returns whether the step was skipped": lambda *_, r=right: [not x for x in r[2]],
                    "when nothing is returned": lambda *_, r=right: [False] * len(r[2]),
                    "when it always returns True": lambda *_, r=right: [True] * len(r[2]),
                },
                given=given,
                task="Return whether an update was made",
            )
            report.at_most(
                "numbers that the CPU asked for in a step",
                most,
                1,
                task="the CPU asks for at most one number of a tensor in each step",
            )


SCALE_SLIPS = {
    "when an overflow does not set the count of good steps to 0": "keep",
    "when the count does not start again after the scale has doubled": "again",
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
}


def play(
    step: Callable[..., Any],
    interval: int,
    shapes: Sequence[tuple[int, ...]],
    max_norm: float,
    seed: int,
    frozen: bool = False,
) -> tuple[Tensor, list[float], list[Any], int]:
    """Run the script: the parameters after each step, the scales, what was returned, the most numbers read."""
    draw = torch.Generator().manual_seed(seed)
    parameters = [nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes]
    without = [nn.Parameter(torch.ones(2))] if frozen else []
    everything = [*without, *parameters]
    optimizer = torch.optim.SGD(everything, lr=0.1, momentum=0.9)
    state = {"scale": 1024.0, "good_steps": 0, "interval": interval}
    path, scales, returned, most = [], [], [], 0
    size = 1e4 if max_norm > 1 else 1.0  # large gradients are no reason to skip
    for number, kind in enumerate(SCRIPT):
        for p in parameters:
            p.grad = (1 + torch.rand(p.shape, generator=draw)) * size * state["scale"]
        if kind == "x":  # not always in the same tensor, and not always the same
            where = parameters[number % len(parameters)].grad
            where.view(-1)[number % where.numel()] = float("nan") if number % 2 else float("-inf")
        with Watch() as watch:
            returned.append(step(list(everything), optimizer, state, max_norm))
        most = max(most, watch.numbers_read)
        path.append(torch.cat([p.detach().flatten() for p in everything]))
        scales.append(state["scale"])
    return torch.stack(path), scales, returned, most


def _path(slip: str, *given: Any) -> Tensor:
    return play(reference(slip), *given)[0]


def _scales(slip: str, *given: Any) -> list[float]:
    return play(reference(slip), *given)[1]


def reference(slip: str = "") -> Callable[..., bool]:
    """The update of exercise 03.2, right or with one slip."""

    def step(everything: list[Tensor], optimizer: Any, state: dict, max_norm: float) -> bool:
        parameters = [p for p in everything if p.grad is not None]
        if slip == "clip":
            clip_grad_norm_(parameters, max_norm)
        finite = all(bool(p.grad.isfinite().all()) for p in parameters)
        if finite or slip == "momentum":
            for p in parameters:
                p.grad.div_(1.0 if slip == "unscale" else state["scale"])
                p.grad.mul_(0.0 if not finite else 1.0).nan_to_num_(0.0, 0.0, 0.0)
            if slip in ("each", "stretch"):
                for some in [[p] for p in parameters] if slip == "each" else [parameters]:
                    norm = clip_grad_norm_(some, max_norm)
                    for p in some if slip == "stretch" else ():
                        p.grad.mul_(max(1.0, max_norm / norm.item()))
            elif slip not in ("clip", "none"):
                clip_grad_norm_(parameters, max_norm)
            optimizer.step()
        if not finite:
            state["scale"] /= 1 if slip == "no half" else 2
            state["good_steps"] = state["good_steps"] + (slip == "count all") if slip in KEEPING else 0
            return False
        state["good_steps"] += 1
        at = state["interval"] + (slip == "late")
        if state["good_steps"] == at or (slip in ("again", "count all") and state["good_steps"] > at):
            state["scale"] *= 1 if slip == "no double" else 2
            state["good_steps"] = state["good_steps"] if slip == "again" else 0
        return True

    return step


KEEPING = ("keep", "count all")


# ---- 03.4: fp16 with PyTorch's own tools ------------------------------------------------------------------

ALL = "the mean over all sequences of the batch, also where the last part is smaller"


@check
def check_03_4(report: Report, fp16_step: Callable[..., Any]) -> None:
    cases = {
        "10 sequences, 4 at a time": Batch(10, 4, 1e6),
        "10 sequences, 4 at a time, gradients to clip": Batch(10, 4, 0.2),
        "6 sequences, 3 at a time, a frozen embedding": Batch(6, 3, 0.2, frozen=True),
        "2 sequences, 4 at a time": Batch(2, 4, 1e6),
        "5 sequences, 1 at a time": Batch(5, 1, 1e6),
    }
    for name, batch in cases.items():
        with report.case(name):
            given = (batch, report.seed())
            got = play_fp16(fp16_step, *given)
            want = play_fp16(right_step(), *given)
            largest = want.moved.abs().max()
            _forwards(report, got, batch)
            report.close(
                "the parameters after 3 steps have moved as in one step on the whole batch each",
                got.moved / largest,
                want.moved / largest,
                tolerance=0.02,
                mistakes={text: partial(_moved, slip, largest) for text, slip in FP16.items()},
                given=given,
                task=ALL,
            )
            report.close("the losses that it returns", got.losses, want.losses, tolerance=0.01, task=ALL)
            task = "The scaler decides once in a step whether to update, and adapts its scale once"
            report.equal("the scale after each step", got.scales, want.scales, task=task)
    with report.case("a scale so large that fp16 overflows"):
        got = play_fp16(fp16_step, Batch(4, 2, 1.0, scale=2.0**40), report.seed())
        task = "The scaler decides once in a step whether to update, and adapts its scale once"
        report.equal("the scale after each step", got.scales, [2.0**39, 2.0**38, 2.0**37], task=task)
        moved = bool(got.moved.any())
        report.true(not moved, "no parameter has moved", "the parameters have moved", task=task)
    with report.case("8 sequences, 2 at a time"):
        seed = report.seed()
        alone = play_fp16(right_step(), Batch(2, 2, 1.0), seed, steps=1, measured=True).activations
        held = play_fp16(fp16_step, Batch(8, 2, 1.0), seed, steps=1, measured=True).activations
        report.at_most(
            "activations at the peak, in percent of those of one part",
            round(100 * held / alone),
            150,
            mistakes={
                "when the activations of all parts are kept until one backward pass": _joined(seed, alone)
            },
            task="never more than 1.5 times the activations of one part alone",
        )


def _moved(slip: str, largest: Tensor, batch: Batch, seed: int) -> Tensor:
    return play_fp16(right_step(slip), batch, seed).moved / largest


def _joined(seed: int, alone: int) -> Callable[[], int]:
    def program() -> int:
        held = play_fp16(right_step("joined"), Batch(8, 2, 1.0), seed, steps=1, measured=True)
        return round(100 * held.activations / alone)

    return program


def _forwards(report: Report, got: Played, batch: Batch) -> None:
    """Every forward pass under autocast, with at most so many sequences, and each sequence once in a step."""
    kinds = {str(dtype).removeprefix("torch.") for _, dtype in got.forwards}
    task = "Every forward pass runs under `torch.autocast` in fp16"
    report.true(
        kinds == {"float16"},
        "every forward pass in fp16",
        f"forward passes in {', '.join(sorted(kinds))}",
        task=task,
    )
    most = max(count for count, _ in got.forwards)
    task = "at most `micro` sequences at a time"
    report.true(
        most <= batch.micro, "the parts are no larger than asked for", f"one has {most} sequences", task=task
    )
