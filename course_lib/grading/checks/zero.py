"""The checks of chapter 06: shards of a buffer, gradients freed early, a step mended, what fits, one norm."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.checks.zero_faulty import mistakes, on_one_device, one_state_for_all
from course_lib.grading.checks.zero_mistakes import (
    FITTING,
    NORMS,
    SCALED,
    fitting,
    norms,
    scaled,
)
from course_lib.grading.checks.zero_pieces import (
    PIECES,
    Pieces,
    as_pieces,
    check_lengths,
    merged,
    right_pieces,
)
from course_lib.grading.checks.zero_ranks import ON_CPU, clipped, released, stepped
from course_lib.grading.checks.zero_released import check_released
from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check
from simulator.predict.collective_traffic import sent_bytes


def _normal(report: Report, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(report.seed()))


# ---- 06.1 -------------------------------------------------------------------------------------------------


@check
def check_06_1(report: Report, pieces: Callable[[list[int], int], Pieces]) -> None:
    draw = random.Random(report.seed())
    cases = {
        "24 elements in 3 tensors, 4 ranks": ([12, 5, 7], 4),
        "23 elements in 4 tensors, 4 ranks": ([10, 3, 1, 9], 4),
        "33 elements in 3 tensors, 3 ranks": ([30, 1, 2], 3),
        "5 elements in 2 tensors, 4 ranks": ([3, 2], 4),
        "an empty tensor between two others, 2 ranks": ([4, 0, 3], 2),
        "one element, 3 ranks": ([1], 3),
        "no element, 2 ranks": ([0], 2),
        "1 rank": ([2, 3], 1),
        "12 tensors of any size, 5 ranks": ([draw.randint(1, 40) for _ in range(12)], 5),
    }
    task = "Return a list with one entry for each rank: the list of the pieces that this rank owns"
    for name, (sizes, ranks) in cases.items():
        with report.case(name):
            owned = as_pieces(report, pieces(list(sizes), ranks), task)
            joined = [merged(own) for own in owned]
            want = right_pieces(sizes, ranks)
            if not any(program(sizes, ranks) == joined for program in PIECES.values()):
                check_lengths(report, joined, sizes, ranks)
            report.equal(
                "the pieces of every rank", joined, want, mistakes=PIECES, given=(sizes, ranks), task=task
            )
            most = max(sum(i == index for i, _, _ in own) for own in owned for index in range(len(sizes)))
            report.at_most(
                "pieces of one tensor on a rank", most, 1, task="No rank has more than one piece of a tensor"
            )


# ---- 06.2 -------------------------------------------------------------------------------------------------


@check
def check_06_2(report: Report, scatter_gradients: Callable[[list[nn.Parameter]], dict]) -> None:
    cases = {
        "2 ranks": (2, 11, False),
        "3 ranks": (3, 11, False),
        "3 ranks, frozen parameters": (3, 9, True),
        "4 ranks, sizes that divide evenly": (4, 16, False),
    }
    for name, (ranks, size, frozen) in cases.items():
        with report.case(name):
            model_of = (report.seed(), size, frozen)
            inputs = [[_normal(report, 4, 7) for _ in range(ranks)] for _ in range(3)]
            found = launch(released, ranks, args=(scatter_gradients, model_of, inputs), **ON_CPU)
            check_released(report, found, model_of, inputs)


# ---- 06.3 -------------------------------------------------------------------------------------------------


@check
def check_06_3(report: Report, mended_step: Callable[..., None]) -> None:
    large = {"lr": 0.05, "momentum": 0.8, "max_norm": 1e6}
    tight = {"lr": 0.05, "momentum": 0.8, "max_norm": 0.7}
    cases = {
        "2 ranks, no clipping": (2, 4, [(large, 1.0)]),
        "3 ranks, no clipping": (3, 4, [(large, 1.0)]),
        "3 ranks, every gradient is clipped": (3, 5, [(tight, 1.0)]),
        "4 ranks, one weight in each shard": (4, 1, [(tight, 1.0)]),
        "2 ranks, two trainings in turns": (2, 3, [(large, 1.0), (tight, 1.0)]),
        "3 ranks, gradients of zero": (3, 2, [(tight, 0.0)]),
        "1 rank": (1, 6, [(tight, 1.0)]),
    }
    programs, steps = mistakes(), 3
    for name, (ranks, length, given) in cases.items():
        with report.case(name):
            n = ranks * length
            trainings = [
                (
                    _normal(report, n),
                    [[size * (1 + _normal(report, n)) for _ in range(ranks)] for _ in range(steps)],
                    settings,
                )
                for settings, size in given
            ]
            found = launch(stepped, ranks, args=(mended_step, trainings), **ON_CPU)
            shared = one_state_for_all(trainings)
            for i, (start, gradients, settings) in enumerate(trainings):
                want = torch.stack(on_one_device(start, gradients, **settings))
                got = [result["after"][i] for result in found]
                report.on_every_rank(
                    "after every step the weights of one device",
                    got,
                    [want] * ranks,
                    tolerance=1e-4,
                    mistakes=programs | {"when all trainings share one momentum": shared[i]}
                    if size_of(gradients)
                    else None,
                    given=(start, gradients, settings),
                    task="Write `mended_step`, which does what one device does",
                )
            kept = max(result["kept"] for result in found)
            task = "`state` holds at most as many numbers as this rank's shard has, and one more"
            report.at_most("numbers in `state`", kept, length + 1, task=task)
            whole = sent_bytes("reduce-scatter", 4 * n, ranks) + sent_bytes("all-gather", 4 * n, ranks)
            limit = len(given) * steps * (whole + sent_bytes("all-reduce", 8, ranks))
            task = "Each step sends one reduce-scatter of the gradient, one all-gather of the weights"
            report.at_most("bytes sent by a rank", round(found[0]["sent"]), round(limit), task=task)
            report.at_most("collectives", found[0]["calls"], 3 * steps * len(given), task=task)


def size_of(gradients: list[list[Tensor]]) -> float:
    return max(g.abs().max().item() for of_ranks in gradients for g in of_ranks)


# ---- 06.4 -------------------------------------------------------------------------------------------------


@check
def check_06_4(
    report: Report,
    largest_model: Callable[[float, int, int], float],
    choose_stage: Callable[[float, float, int], int | None],
) -> None:
    task = "how many parameters fit into `memory` bytes on each of `ranks` ranks"
    for memory, ranks in ((80e9, 64), (40e9, 8), (141e9, 2), (24e9, 3), (16e9, 1000), (80e9, 1), (100, 3)):
        room = f"{memory / 1e9:.0f} GB" if memory >= 1e9 else f"{memory} bytes"
        with report.case(f"{ranks:,} rank{'s' if ranks > 1 else ''} with {room}"):
            got = [_number(report, largest_model(memory, stage, ranks)) for stage in range(4)]
            report.close(
                "the parameters that fit at stages 0 to 3",
                got,
                fitting(memory, ranks),
                tolerance=1e-6,
                mistakes=FITTING,
                given=(memory, ranks),
                task=task,
            )
    cases = [(1e9, 80e9, 64), (7.5e9, 40e9, 64), (10e9, 80e9, 64), (30e9, 80e9, 64), (30e9, 80e9, 4)]
    cases += [
        (1e9, 16e9, 4),
        (1e9, 7e9, 4),
        (1e9, 5.5e9, 4),
        (1e9, 4e9, 4),
        (1e9, 3.999e9, 4),
        (2e9, 31e9, 1),
    ]
    for parameters, memory, ranks in cases:
        with report.case(
            f"{parameters / 1e9:g} billion parameters, {ranks} rank{'s' if ranks > 1 else ''} with {memory / 1e9:g} GB"
        ):
            _check_stage(report, choose_stage(parameters, memory, ranks), parameters, memory, ranks)


def _number(report: Report, got: Any) -> float:
    try:
        return float(got)
    except (TypeError, ValueError):
        return report.fail(f"the result is {got!r}, not a number of parameters")


def _check_stage(report: Report, got: Any, parameters: float, memory: float, ranks: int) -> None:
    fits = [stage for stage, most in enumerate(fitting(memory, ranks)) if parameters <= most * (1 + 1e-12)]
    task = "returns a stage at which a model fits, or None where it fits at no stage"
    if not fits:
        report.true(
            got is None, "no stage fits", f"the answer is {got!r}, and the model fits at no stage", task=task
        )
        return
    if got is None:
        exactly = fitting(memory, ranks)[fits[0]] <= parameters * (1 + 1e-12)
        task = "A model that fills the memory exactly fits" if exactly else task
        report.fail(f"the answer is None, and the model fits at stage {fits[0]}", task=task)
    report.true(got in range(4), "the answer is a stage", f"the answer is {got!r}, not a stage", task=task)
    report.true(got in fits, "it fits", f"at stage {got} the model does not fit", task=task)
    task = "`choose_stage` returns a stage that sends the least, and among those that send equally much the lowest"
    report.at_most("the stage", int(got), fits[0], task=task)


# ---- 06.5 -------------------------------------------------------------------------------------------------


@check
def check_06_5(report: Report, clip_shards: Callable[..., Any]) -> None:
    cases = {  # for each rank, how many elements of each of its shards are real; tensors in `whole`; max_norm
        "2 ranks, norm above 1": ([[4, 6], [6, 1]], 2, 1.0),
        "3 ranks, one of them without a shard": ([[5, 2], [], [3, 0]], 2, 0.5),
        "3 ranks, nothing is whole": ([[5], [5], [4]], 0, 0.5),
        "3 ranks, nothing is sharded": ([[], [], []], 3, 0.5),
        "2 ranks, norm below 100": ([[4], [2]], 2, 100.0),
        "2 ranks, a gradient of zero": ([[4], [2]], 0, 0.5),
        "1 rank": ([[3]], 1, 0.5),
    }
    for name, (counts, wholes, max_norm) in cases.items():
        with report.case(name):
            zero = "zero" in name
            held = [[(_shard(report, count, zero), count) for count in own] for own in counts]
            whole = [_normal(report, 3, 2), one := _normal(report, 4), one.clone()][:wholes]
            found = launch(clipped, len(counts), args=(clip_shards, held, whole, max_norm), **ON_CPU)
            given = (held, whole, max_norm)
            report.on_every_rank(
                "the norm is that of the whole gradient",
                [result["norm"] for result in found],
                norms(held, whole),
                tolerance=1e-4,
                mistakes=NORMS,
                given=given,
                task="Return the norm as it was before",
            )
            report.on_every_rank(
                "every element is scaled by the same factor",
                [result["after"] for result in found],
                scaled(*given),
                tolerance=1e-4,
                mistakes=SCALED,
                given=given,
                task="multiply all of it by `max_norm` / norm",
            )
            task = "one all-reduce of one number of 8 bytes"
            report.at_most("collectives", max(result["calls"] for result in found), 1, task=task)
            limit = round(sent_bytes("all-reduce", 8, len(counts)), 1)
            report.at_most("bytes sent by a rank", round(found[0]["sent"], 1), limit, task=task)


def _shard(report: Report, count: int, zero: bool) -> Tensor:
    """Real elements, and behind them padding that is not zero."""
    shard = _normal(report, 6)
    shard[count:] = 50.0
    return shard * (torch.arange(6) >= count) if zero else shard
