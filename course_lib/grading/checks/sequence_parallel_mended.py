"""The check of 10.3: a layer with sequence parallelism that is mended, with its masks, gradients and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.checks.sequence_parallel_layer import make_layer
from course_lib.grading.checks.sequence_parallel_mistakes import layer_faults, layer_results, sentence
from course_lib.grading.checks.sequence_parallel_ranks import ON_CPU, Passing, normal, passed
from course_lib.grading.compare import rank_differences
from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check
from simulator.predict.collective_traffic import sent_bytes

OF_NORM, OF_BIAS = "gradient of `norm_weight` and `norm_bias`", "gradient of `bias`"
APART = "when the gradients of `norm_weight`, `norm_bias` and `bias` do not travel in one message"
SUMMED_AGAIN = "when gradients that are added up over the ranks are added up again for every further call"


@check
def check_10_3(report: Report, mended_layer: Callable[..., Tensor]) -> None:
    worlds = {
        2: {
            "2 ranks": _passing(report, 2, drop=0.0),
            "2 ranks, two calls with dropout": _passing(report, 2, calls=2),
            "2 ranks, norm and bias are frozen": _passing(report, 2, frozen=True),
            "a group of one rank": _passing(report, 1),
        },
        3: {"3 ranks, two calls with dropout": _passing(report, 3, calls=2)},
    }
    for world, cases in worlds.items():
        with report.case(f"{world} ranks"):
            found = launch(passed, world, args=(mended_layer, list(cases.values())), **ON_CPU)
            for i, (name, case) in enumerate(cases.items()):
                with report.case(name):
                    _check_layer(report, case, [rank[i] for rank in found[: case.ranks]])


def _passing(report: Report, ranks: int, drop: float = 0.4, calls: int = 1, frozen: bool = False) -> Passing:
    layer = make_layer(16, 12 * ranks, report.seed(), frozen)
    xs, upstream = ([normal(report.seed(), 4, 8 * ranks, 16) for _ in range(calls)] for _ in range(2))
    return Passing(layer, xs, upstream, drop, ranks)


def _check_layer(report: Report, case: Passing, found: list[dict[str, Any]]) -> None:
    ranks, calls, x = case.ranks, len(case.xs), case.xs[0]
    own = (x.shape[0], x.shape[1] // ranks, x.shape[2])
    for shape in (tuple(out.shape) for rank in found for out in rank["outs"]):
        if shape != own:
            report.fail(
                f"the result has the shape {shape}, and this rank's tokens are {own}",
                task="Return this rank's tokens",
            )
    if case.drop:
        _check_masks(report, found, case.drop)
    kept = [torch.cat([~rank["dropped"][call] for rank in found], 1).double() for call in range(calls)]
    if not case.drop:
        kept = [torch.ones_like(k) for k in kept]
    right = layer_results(case, kept)
    likely = _mistake(case, kept, found) if ranks > 1 else None

    def compare(fact: str, pick: Callable[[dict[str, Any]], Tensor], task: str, thing: str) -> None:
        got, want = list(map(pick, found)), list(map(pick, right))
        mistakes = {likely[0]: list(map(pick, likely[1]))} if likely else {}
        if not likely and calls > 1 and thing in (OF_NORM, OF_BIAS):
            mistakes = {SUMMED_AGAIN: [ranks ** (calls - 1) * w for w in want]}
        report.on_every_rank(fact, got, want, mistakes=mistakes, task=task, thing=thing)

    def gradient(*names: str) -> Callable[[dict[str, Any]], Tensor]:
        return lambda rank: _joined(rank["gradients"][name] for name in names)

    compare(
        "the result is that of one device",
        lambda rank: torch.cat(rank["outs"]),
        "computes what one device computes",
        "result",
    )
    task = "every gradient is that of one device, on every rank"
    compare("gradient of `x`", gradient("x"), task, "gradient of `x`")
    compare("gradients of `up` and `down`", gradient("up", "down"), task, "gradient of `up` and `down`")
    frozen = not case.layer.norm_weight.requires_grad
    if not frozen:
        compare(
            "gradients of `norm_weight` and `norm_bias`", gradient("norm_weight", "norm_bias"), task, OF_NORM
        )
        compare("gradient of `bias`", gradient("bias"), task, OF_BIAS)
    elif any(
        rank["gradients"][name] is not None for rank in found for name in ("norm_weight", "norm_bias", "bias")
    ):
        report.fail(
            "a frozen tensor has a gradient", task="Where a tensor of `layer` is frozen it gets no gradient"
        )
    bytes = 2 * sent_bytes("all-gather", x.nbytes, ranks) + 2 * sent_bytes("reduce-scatter", x.nbytes, ranks)
    if not frozen:
        bytes += sent_bytes("all-reduce", 3 * x.shape[-1] * x.element_size(), ranks)
    task = "two all-gathers, two reduce-scatters and one all-reduce of 3 · hidden numbers"
    if frozen:
        task = "If `norm_weight`, `norm_bias` and `bias` are all frozen, it sends no all-reduce"
    if ranks > 1:
        limit = (4 if frozen else 5) * calls
        many = max(rank["calls"] for rank in found)
        as_many_bytes = max(rank["sent"] for rank in found) <= calls * bytes + 0.5
        apart = as_many_bytes and not frozen and many in (limit + calls, limit + 2 * calls)
        report.at_most("collectives", many, limit, mistakes={APART: many} if apart else None, task=task)
    report.at_most(
        "bytes sent by a rank", round(max(rank["sent"] for rank in found)), round(calls * bytes), task=task
    )


def _mistake(
    case: Passing, kept: list[Tensor], found: list[dict[str, Any]]
) -> tuple[str, list[dict[str, Any]]] | None:
    """The fewest faults with which all results and all gradients are those of the answer, and what they give."""
    for faults in layer_faults():
        results = layer_results(case, kept, faults)
        if not any(
            rank_differences([_everything(g)], [_everything(r)], 1e-5)
            for g, r in zip(found, results, strict=True)
        ):
            return sentence(faults), results
    if case.drop:
        unscaled = layer_results(case, [(1 - case.drop) * k for k in kept])
        if not rank_differences([_everything(g) for g in found], [_everything(r) for r in unscaled], 1e-5):
            return "when the elements that stay are not divided by 1 - `drop`", unscaled
    return None


def _everything(rank: dict[str, Any]) -> Tensor:
    gradients = [g.flatten() for g in rank["gradients"].values() if g is not None]
    return torch.cat([*(out.flatten() for out in rank["outs"]), *gradients])


def _joined(gradients: Iterable[Tensor | None]) -> Tensor | None:
    found = list(gradients)
    return None if any(g is None for g in found) else torch.cat([g.flatten() for g in found])


def _check_masks(report: Report, found: list[dict[str, Any]], drop: float) -> None:
    ranks, first = len(found), [rank["dropped"][0] for rank in found]
    share = torch.stack(first).double().mean().item()
    zeros = torch.stack([(rank["outs"][0] == 0).double().mean() for rank in found]).mean().item()
    report.true(
        abs(share - drop) < 0.12,
        "about as many elements are dropped as `drop` says",
        f"{share:.0%} of the elements are dropped, and `drop` is {drop:.0%}",
        likely="dropout is applied to the sum with `x`, not before it" if abs(zeros - drop) < 0.12 else None,
        task="`drop` is the probability that an element is set to zero",
    )
    differ = all(not torch.equal(first[0], other) for other in first[1:])
    if ranks > 1:
        report.true(
            differ,
            "the masks of different ranks differ",
            "the ranks drop the same places of their tokens",
            task="every rank's mask is different",
        )
    if len(found[0]["dropped"]) > 1:
        report.true(
            all(not torch.equal(*rank["dropped"][:2]) for rank in found),
            "the masks of two calls differ",
            "the second call drops the same places as the first",
            task="and so is the mask of every call",
        )
    same = all(torch.equal(a, b) for rank in found for a, b in zip(rank["outs"], rank["again"], strict=True))
    report.true(
        same,
        "with the same random state the masks are the same again",
        "with the same random state other places are dropped",
        task="Where the random state is set back, as recomputation does, the same masks come again",
    )
    agree = all(torch.equal(found[0]["state"], rank["state"]) for rank in found)
    report.true(
        agree,
        "afterwards all ranks have the same random state",
        "afterwards the ranks have different random states",
        task="Afterwards the random state of PyTorch is again the same on all ranks",
    )
