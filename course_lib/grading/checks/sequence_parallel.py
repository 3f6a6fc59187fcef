"""The checks of chapter 10: g and g-bar, an MLP that keeps its shard, a layer mended, PyTorch's own tool."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.checks.sequence_parallel_mended import check_10_3
from course_lib.grading.checks.sequence_parallel_mistakes import (
    crossing_mistakes,
    gathered,
    region,
    region_mistakes,
    scattered,
)
from course_lib.grading.checks.sequence_parallel_official import check_10_4
from course_lib.grading.checks.sequence_parallel_ranks import (
    ON_CPU,
    Crossing,
    Region,
    crossed,
    mlp_keeps,
    normal,
    through_mlp,
)
from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check
from simulator.predict.collective_traffic import sent_bytes

__all__ = ["check_10_1", "check_10_2", "check_10_3", "check_10_4"]


# ---- 10.1 ---------------------------------------------------------------------------------------------------


@check
def check_10_1(
    report: Report, gather_tokens: Callable[..., Tensor], scatter_tokens: Callable[..., Tensor]
) -> None:
    layouts = {4: ("4 ranks in groups of 2", "a group of one rank"), 3: ("3 ranks",)}
    sizes = {"4 ranks in groups of 2": 2, "a group of one rank": 1, "3 ranks": 3}
    for world, names in layouts.items():
        cases: dict[tuple[str, str], Crossing] = {}
        for where in names:
            for gathers in (True, False):
                name = "gather_tokens" if gathers else "scatter_tokens"
                draw = partial(_crossing, report, gathers, sizes[where])
                cases[where, name] = draw((3, 2, 5))
                if sizes[where] == 2:
                    cases[where, f"{name}, one token each"] = draw((2, 1, 4))
                    cases[where, f"{name}, a strided input"] = draw((3, 2, 5), strided=True)
                    cases[where, f"{name} in bf16"] = draw((2, 3, 4), bf16=True)
        with report.case(f"{world} ranks"):
            found = launch(
                crossed, world, args=(gather_tokens, scatter_tokens, list(cases.values())), **ON_CPU
            )
            for where in names:
                mine = {
                    name: (case, [rank[i] for rank in found])
                    for i, ((there, name), case) in enumerate(cases.items())
                    if there == where
                }
                for name, (case, results) in mine.items():
                    with report.case(f"{where}, {name}"):
                        _check_crossing(report, case, results)
                with report.case(where):
                    _check_crossing_targets(report, list(mine.values()))


def _crossing(
    report: Report,
    gathers: bool,
    size: int,
    shape: tuple[int, int, int],
    strided: bool = False,
    bf16: bool = False,
) -> Crossing:
    batch, own, hidden = shape
    part, whole = (batch, own, hidden), (batch, own * size, hidden)
    generator = torch.Generator().manual_seed(report.seed())

    def draw(shape: tuple[int, ...]) -> list[Tensor]:  # small whole numbers, which bf16 has exactly
        of_ranks = [torch.randint(-9, 10, shape, generator=generator) for _ in range(size)]
        return [t.to(torch.bfloat16 if bf16 else torch.float64) for t in of_ranks]

    return Crossing(gathers, draw(part if gathers else whole), draw(whole if gathers else part), strided)


def _check_crossing(report: Report, case: Crossing, found: list[dict[str, Any]]) -> None:
    copies = len(found) // len(case.inputs)
    there, back = (gathered, scattered) if case.gathers else (scattered, gathered)
    report.on_every_rank(
        "forward",
        [rank["out"] for rank in found],
        copies * there(case.inputs),
        mistakes=crossing_mistakes(case, copies, backward=False),
        task="gets the tokens of all ranks of the group, in the order of the ranks"
        if case.gathers
        else "the result is the sum over the group, of which each rank gets its own tokens",
    )
    if any(rank["changed"] for rank in found):
        report.fail("`x` has been changed in place", task="`x` is left as it is")
    report.on_every_rank(
        "backward",
        [rank["gradient"] for rank in found],
        copies * back(case.upstream),
        mistakes=crossing_mistakes(case, copies, backward=True),
        task="In backward each does what the other does in forward, with the gradient",
        thing="gradient of `x`",
    )


def _check_crossing_targets(report: Report, cases: list[tuple[Crossing, list[dict[str, Any]]]]) -> None:
    # What is right sends; with an all-reduce for the sum; and with one for the gather, too.
    limit = summed = both = 0.0
    for case, _ in cases:
        size, x = len(case.inputs), case.inputs[0]
        whole = max(x.numel(), case.upstream[0].numel()) * x.element_size()
        gather = sent_bytes("all-gather", whole, size)
        limit += gather + sent_bytes("reduce-scatter", whole, size)
        summed += gather + sent_bytes("all-reduce", whole, size)
        both += 2 * sent_bytes("all-reduce", whole, size)
    sent = sum(max(rank["sent"] for rank in found) for _, found in cases)
    kept = sum(max(rank["kept"] for rank in found) for _, found in cases)
    task = "Each direction sends no more than one ring all-gather or one ring reduce-scatter of the tensor"
    likely = {
        "when the sum is an all-reduce, of which each rank takes its part": round(summed),
        "when all-reduces do the work of the all-gather, and of the reduce-scatter as well": round(both),
    }
    report.at_most("bytes sent there and back, in all", round(sent), round(limit), mistakes=likely, task=task)
    report.at_most("bytes kept for backward", kept, 0, task="nothing is kept for backward")


# ---- 10.2 ---------------------------------------------------------------------------------------------------


@check
def check_10_2(report: Report, mlp: Callable[..., Tensor]) -> None:
    worlds = {
        2: {
            "2 ranks": _region(report, 2),
            "2 ranks, one token each": _region(report, 2, batch=1, own=1),
            "2 ranks, the weight of `up` is frozen": _region(report, 2, frozen=True),
            "a group of one rank": _region(report, 1),
        },
        3: {
            "3 ranks": _region(report, 3),
            "3 ranks, the weight of `up` is frozen": _region(report, 3, frozen=True),
        },
    }
    for world, cases in worlds.items():
        with report.case(f"{world} ranks"):
            found = launch(through_mlp, world, args=(mlp, list(cases.values())), **ON_CPU)
            for i, (name, case) in enumerate(cases.items()):
                with report.case(name):
                    _check_region(report, case, [rank[i] for rank in found[: case.ranks]])


def _region(report: Report, ranks: int, batch: int = 2, own: int = 3, frozen: bool = False) -> Region:
    hidden, wide, seq = 5, 4 * ranks, own * ranks
    sizes = [(batch, seq, hidden), (wide, hidden), (wide,), (hidden, wide), (batch, seq, hidden)]
    return Region(*(normal(report.seed(), *size) for size in sizes), ranks, frozen)


def _check_region(report: Report, case: Region, found: list[dict[str, Any]]) -> None:
    ranks = case.ranks
    outs, gradients = region(case)
    report.on_every_rank(
        "the result",
        [rank["out"] for rank in found],
        outs,
        mistakes=region_mistakes(case, "result"),
        task="Return this rank's tokens of the result",
    )
    for name in ("x", "up.weight", "up.bias", "down.weight"):
        want = [rank[name] for rank in gradients]
        got = [rank["gradients"][name] for rank in found]
        task = "The gradients of `x` and of every weight and bias are those of one device"
        if want[0] is None:
            if any(g is not None for g in got):
                report.fail(f"`{name}` has a gradient, and is frozen", task="`up.weight` may be frozen")
            continue
        fact = f"gradient of `{name}`"
        report.on_every_rank(fact, got, want, mistakes=region_mistakes(case, name), task=task, thing=fact)
    kept, whole = max(rank["kept"] for rank in found), case.x.nbytes
    too = mlp_keeps(case) + whole  # more than that says nothing: Gloo may not have let go of a message yet
    likely = {"when the gathered input is kept, too": too if kept <= too else None} if ranks > 1 else None
    task = "Besides `x` and the result a rank keeps only what GELU and `down` get"
    report.at_most("bytes kept for backward", kept, mlp_keeps(case), mistakes=likely, task=task)
    gather, scatter = (sent_bytes(name, whole, ranks) for name in ("all-gather", "reduce-scatter"))
    limit = round((2 if case.frozen else 3) * gather + 2 * scatter)
    again = {"when the input is gathered again though nothing needs it": round(3 * gather + 2 * scatter)}
    task = "It sends at most three all-gathers and two reduce-scatters of the whole input"
    report.at_most(
        "bytes sent in forward and backward",
        round(max(rank["sent"] for rank in found)),
        limit,
        mistakes=again if case.frozen else None,
        task="where the weight of `up` is frozen, two all-gathers and two reduce-scatters"
        if case.frozen
        else task,
    )
