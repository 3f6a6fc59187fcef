"""The checks of chapter 03 that play training steps: a loss scaler, and fp16 with PyTorch's own tools."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from course_lib.grading.checks.memory_fp16 import FP16, LOSSES, Batch, Played, play_fp16, right_step
from course_lib.grading.checks.memory_scaler import (
    OVERFLOW_SLIPS,
    PATH_SLIPS,
    SCALE_SLIPS,
    SCRIPT,
    counts_of,
    overflows,
    path_of,
    play,
    reference,
    scales_of,
    told,
)
from course_lib.grading.report import Report, check

# ---- 03.2: loss scaling -----------------------------------------------------------------------------------


@check
def check_03_2(report: Report, scaled_step: Callable[..., bool]) -> None:
    cases = [
        (3, [(3, 2), (5,)], 0.5),
        (2, [(4,), (2, 3), (1,)], 0.5),
        (5, [(6,)], 1e8),
        (1, [(1,)], 0.5),
        (3, [(2, 2), (3,)], 0.5),
    ]
    for number, (interval, shapes, max_norm) in enumerate(cases):
        frozen = number == len(cases) - 1
        clips = "nothing to clip" if max_norm > 1 else "gradients to clip"
        name = f"interval {interval}, {len(shapes)} tensor{'s' * (len(shapes) > 1)}, {clips}"
        with report.case(f"{name}, one more without a gradient" if frozen else name):
            given = (interval, shapes, max_norm, report.seed(), frozen)
            path, scales, returned, most, counts = play(scaled_step, *given)
            right = play(reference(), *given)
            answers = [bool(r) for r in returned]
            report.true(
                bool(path.isfinite().all()),
                f"{SCRIPT.count('x')} of {len(SCRIPT)} steps overflow, and every parameter stays finite",
                "" if path.isfinite().all() else told(path, shapes),
                got=(path.isfinite().all(1).tolist(), answers),
                mistakes={text: partial(overflows, slip) for text, slip in OVERFLOW_SLIPS.items()},
                given=given,
                task="the parameters and the optimizer's state stay as they are",
            )
            report.equal(
                "the scale after each step",
                scales,
                right[1],
                mistakes={text: partial(scales_of, slip) for text, slip in SCALE_SLIPS.items()},
                given=given,
                task="updates in a row were made, the scale doubles and the count starts again at 0",
            )
            report.equal(
                "`good_steps` after each step",
                counts,
                right[4],
                mistakes={text: partial(counts_of, slip) for text, slip in SCALE_SLIPS.items()},
                given=given,
                task="the scale doubles and the count starts again at 0, all in the same call",
            )
            report.close(
                "the parameters after each step",
                path,
                right[0],
                mistakes={text: partial(path_of, slip) for text, slip in PATH_SLIPS.items()},
                given=given,
            )
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
            want = play_fp16(right_step(), *given, watch=None)
            largest = want.moved.abs().max()
            _forwards(report, got, batch)
            if got.forgotten:
                task = "The scaler decides once in a step whether to update, and adapts its scale once"
                report.fail("a step ends without `scaler.update()`, which adapts the scale", task=task)
            report.close(
                "the parameters after 3 steps have moved as in one step on the whole batch each",
                got.moved / largest,
                want.moved / largest,
                tolerance=0.02,
                mistakes={text: partial(_moved, slip, largest) for text, slip in FP16.items()},
                given=given,
                task=ALL,
            )
            report.close(
                "the losses that it returns",
                got.losses,
                want.losses,
                tolerance=0.001,
                mistakes={text: partial(_losses, slip) for text, slip in LOSSES.items()},
                given=given,
                task="Return the loss of the whole batch, as a number",
            )
            task = "The scaler decides once in a step whether to update, and adapts its scale once"
            report.equal("the scale after each step", got.scales, want.scales, task=task)
    with report.case("a scale so large that fp16 overflows"):
        got = play_fp16(fp16_step, Batch(4, 2, 1.0, scale=2.0**40), report.seed())
        task = "The scaler decides once in a step whether to update, and adapts its scale once"
        report.equal("the scale after each step", got.scales, [2.0**39, 2.0**38, 2.0**37], task=task)
        moved = bool(got.moved.any())
        report.true(
            not moved,
            "no parameter has moved",
            "the parameters have moved",
            got=bool(got.moved.isfinite().all()),
            mistakes={
                "when the optimizer makes its update in every case, and does not leave this to `scaler.step`": False
            },
            task=task,
        )
    with report.case("8 sequences, 2 at a time"):
        seed = report.seed()
        alone = play_fp16(right_step(), Batch(2, 2, 1.0), seed, steps=1, watch="memory").activations
        held = play_fp16(fp16_step, Batch(8, 2, 1.0), seed, steps=1, watch="memory").activations
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
    return play_fp16(right_step(slip), batch, seed, watch=None).moved / largest


def _losses(slip: str, batch: Batch, seed: int) -> list[float]:
    return play_fp16(right_step(slip), batch, seed, watch=None).losses


def _joined(seed: int, alone: int) -> Callable[[], int]:
    def program() -> int:
        held = play_fp16(right_step("joined"), Batch(8, 2, 1.0), seed, steps=1, watch="memory")
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
    wrong = [kind for kind in got.losses_in if kind not in ("float32", "float64")]
    report.true(
        not wrong,
        "every loss of logits in fp32",
        f"a loss is computed from logits in {', '.join(wrong)}",
        task="The loss of a part is `cross_entropy(logits.float(), targets)`",
    )
    most = max(count for count, _ in got.forwards)
    task = "at most `micro` sequences at a time"
    report.true(
        most <= batch.micro, "the parts are no larger than asked for", f"one has {most} sequences", task=task
    )
