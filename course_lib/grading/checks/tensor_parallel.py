"""The checks of chapter 09: f and g, the loss of a cut vocabulary, a mended block, heads of a fused matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.checks.tensor_parallel_block import (
    OUTPUTS,
    Block,
    mistakes_of,
    on_one_device,
    stepped,
)
from course_lib.grading.checks.tensor_parallel_heads import HEADS, attention_of, rows_needed, shape_problem
from course_lib.grading.checks.tensor_parallel_loss import GRADIENTS, LOSSES, gradient_of, loss_of, scored
from course_lib.grading.checks.tensor_parallel_operators import crossed, expected, mistakes
from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check
from simulator.inputs.chunks import chunk_sizes
from simulator.predict.collective_traffic import sent_bytes

GAIN_BY_ITSELF = (
    "when `gain` enters through an `f` of its own, which sends its gradient in a message of its own"
)
KV_REPEATED = "when a rank has the same head of keys and values once for each query head that uses it"
ON_CPU: dict[str, Any] = {"timeout": 60.0, "backend": "gloo"}


def _normal(report: Report, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(report.seed()))


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''}"


# ---- 09.1 -------------------------------------------------------------------------------------------------


@check
def check_09_1(report: Report, enter: Callable[..., Any], leave: Callable[[Tensor], Tensor]) -> None:
    for ranks, tokens, hidden in ((2, 5, 4), (3, 4, 3), (4, 1, 1), (1, 3, 2)):
        with report.case(f"{_ranks(ranks)}, {tokens} token{'s' if tokens > 1 else ''} of {hidden}"):
            x, scale, shift = (_normal(report, *shape) for shape in ((tokens, hidden), (hidden,), (hidden,)))
            own = [(_normal(report, hidden, 2), _normal(report, 2, hidden)) for _ in range(ranks)]
            weight = _normal(report, tokens, hidden)
            given = (x, scale, shift, own, weight)
            found = launch(crossed, ranks, args=(enter, leave, *given), **ON_CPU)
            problem = next((result["problem"] for result in found if result["problem"]), None)
            report.true(
                problem is None,
                "`enter` returns a tuple with the tensors that it got",
                f"{problem}",
                task="It returns a tuple with as many tensors as it got, with the same values.",
            )
            want, programs = expected(*given), mistakes(*given)
            summed = "In backward the gradients of all others are summed over the ranks."
            for name, what, task in (
                ("z", "the output", "In forward it returns the sum of the ranks' tensors."),
                (
                    "own",
                    "the gradients of this rank's matrices",
                    "In backward it passes the gradient on as it is.",
                ),
                ("x", "the gradient of the tokens", summed),
                ("scale", "the gradient of the scale", summed),
            ):
                report.on_every_rank(
                    what,
                    [result[name] for result in found],
                    want[name],
                    tolerance=1e-4,
                    mistakes=programs.get(name),
                    given=(),
                    task=task,
                )
            changed = [what for result in found for what in result["changed"]]
            report.true(
                not changed,
                "no tensor that `enter` or `leave` gets is changed",
                f"{', '.join(changed[:1])} is changed in place, and others may still need it",
                task="neither operator changes a tensor that it gets, also not a gradient.",
            )
            if ranks == 1:
                continue
            task = "one all-reduce in forward and one in backward"
            for when in ("forward", "backward"):
                most = max(result[when][0] for result in found)
                report.at_most(f"collectives in {when}", most, 1, task=task)
            limit = round(sent_bytes("all-reduce", 4 * (x.numel() + scale.numel()), ranks), 1)
            sent = round(max(result["backward"][1] for result in found), 1)
            task = "The one in backward carries no more numbers than the tensors have that need a gradient."
            report.at_most("bytes sent by a rank in backward", sent, limit, task=task)


# ---- 09.2 -------------------------------------------------------------------------------------------------


@check
def check_09_2(report: Report, loss_and_gradient: Callable[..., Any]) -> None:
    cases = {  # ranks, words, tokens, how many of them are ignored, how large the logits are
        "2 ranks, 10 words": (2, 10, 6, 0, 1.0),
        "3 ranks, 7 words, ignored tokens": (3, 7, 9, 4, 1.0),
        "3 ranks, a word each": (3, 3, 5, 1, 1.0),
        "4 ranks, logits in the thousands": (4, 21, 6, 2, 3000.0),
        "2 ranks, one token": (2, 5, 1, 0, 1.0),
        "2 ranks, all tokens ignored": (2, 5, 3, 3, 1.0),
        "1 rank": (1, 6, 4, 1, 1.0),
    }
    for name, (ranks, words, tokens, ignored, size) in cases.items():
        with report.case(name):
            logits = size * _normal(report, tokens, words)
            generator = torch.Generator().manual_seed(report.seed())
            targets = torch.randint(words, (tokens,), generator=generator)
            targets[torch.randperm(tokens, generator=generator)[:ignored]] = -100
            sizes = chunk_sizes(words, ranks)
            given = (logits, targets, sizes)
            found = launch(scored, ranks, args=(loss_and_gradient, *given), **ON_CPU)
            odd = next((result["loss"] for result in found if not result["pair"]), None)
            report.true(
                odd is None,
                "a loss and a gradient",
                f"the result is {odd}, not a pair of a loss and a gradient",
                task="Return the pair `(loss, gradient)`, on every rank",
            )
            wrong = {"mistakes": LOSSES, "given": given} if ignored < tokens else {}
            report.on_every_rank(
                "the loss of whole logits",
                [result["loss"] for result in found],
                [loss_of(logits, targets)] * ranks,
                tolerance=1e-4,
                task="`loss` is the mean over the tokens that are not ignored (0 if all are)",
                **wrong,
            )
            wrong = {"mistakes": GRADIENTS, "given": given} if ignored < tokens else {}
            report.on_every_rank(
                "the gradient of this rank's logits",
                [result["gradient"] for result in found],
                [part.contiguous() for part in gradient_of(logits, targets).split(sizes, 1)],
                tolerance=1e-4,
                task="`gradient` is its gradient by `logits`",
                **wrong,
            )
            report.true(
                all(result["kept"] for result in found),
                "the logits are as they were",
                "`logits` has been changed in place",
                task="`logits` stays as it is.",
            )
            if ranks == 1:
                continue
            calls = max(result["calls"] for result in found)
            report.at_most("collectives", calls, 2, task="At most two all-reduces")
            limit = round(sent_bytes("all-reduce", 3 * 4 * tokens, ranks), 1)
            task = "together at most three numbers of 4 bytes for each token"
            report.at_most("bytes sent by a rank", round(found[0]["sent"], 1), limit, task=task)


# ---- 09.3 -------------------------------------------------------------------------------------------------


@check
def check_09_3(report: Report, mended_block: Callable[..., Tensor]) -> None:
    cases = {  # ranks, tokens, hidden, columns of a rank, down has a bias
        "2 ranks": (2, 5, 4, 6, True),
        "3 ranks": (3, 4, 3, 2, True),
        "3 ranks, `down` without a bias": (3, 4, 5, 1, False),
        "1 rank": (1, 3, 4, 4, True),
    }
    for name, (ranks, tokens, hidden, columns, biased) in cases.items():
        with report.case(name):
            block = Block.drawn(report.seed(), ranks, tokens, hidden, columns, biased)
            found = launch(stepped, ranks, args=(mended_block, block), **ON_CPU)
            want, programs = on_one_device(block), mistakes_of(block) if ranks > 1 else {}
            for output, (what, task) in OUTPUTS.items():
                if output == "down.bias" and not biased:
                    continue
                report.on_every_rank(
                    what,
                    [result[output] for result in found],
                    want[output],
                    tolerance=1e-4,
                    mistakes=programs.get(output),
                    given=(),
                    task=task,
                )
            if ranks == 1:
                continue
            task = "one all-reduce in forward and one in backward, each of a tensor as large as `x`"
            limit = round(sent_bytes("all-reduce", 4 * tokens * hidden, ranks), 1)
            for when in ("forward", "backward"):
                calls, sent = found[0][when]
                of_gain = round(sent_bytes("all-reduce", 4, ranks), 1)  # a message of one number
                by_itself = when == "backward" and calls == 2 and abs(sent - limit - of_gain) < 0.2
                report.at_most(
                    f"collectives in {when}",
                    calls,
                    1,
                    mistakes={GAIN_BY_ITSELF: calls} if by_itself else None,
                    task=task,
                )
                report.at_most(f"bytes sent by a rank in {when}", round(sent, 1), limit, task=task)


# ---- 09.4 -------------------------------------------------------------------------------------------------


@check
def check_09_4(report: Report, split_qkv: Callable[[Tensor, int, int, int, int], Tensor]) -> None:
    cases = [  # ranks, query heads, KV heads, numbers of a head
        (2, 4, 4, 4),
        (2, 8, 4, 2),
        (3, 6, 3, 4),
        (4, 8, 2, 2),
        (6, 12, 2, 2),
        (4, 4, 1, 4),
        (1, 4, 2, 2),
    ]
    for ranks, heads, kv_heads, size in cases:
        with report.case(f"{_ranks(ranks)}, {heads} query heads, {kv_heads} KV head{'s' * (kv_heads > 1)}"):
            hidden = 5
            weight, x = _normal(report, (heads + 2 * kv_heads) * size, hidden), _normal(report, 6, hidden)
            kept = weight.clone()
            parts = [split_qkv(weight, rank, ranks, heads, kv_heads) for rank in range(ranks)]
            problem = next(
                filter(None, (shape_problem(p, heads // ranks, size, hidden) for p in parts)), None
            )
            report.true(
                problem is None,
                "rows of whole heads",
                f"{problem}",
                task="Return this rank's rows as one tensor, in the same order",
            )
            report.true(
                bool(weight.equal(kept)), "the weight is as it was", "`weight` has been changed in place"
            )
            whole = attention_of(weight, x, heads, size)
            report.on_every_rank(
                "attention of this rank's heads",
                [attention_of(part, x, heads // ranks, size) for part in parts],
                [one.contiguous() for one in whole.chunk(ranks)],
                tolerance=1e-4,
                mistakes=HEADS,
                given=(weight, x, ranks, heads, kv_heads, size),
                task="Rank r has the r-th of `ranks` equal shares of the query heads, "
                "and the heads of keys and values that these use.",
            )
            most = max(len(part) for part in parts)
            task = "No rank has more rows than it needs"
            report.at_most(
                "rows of a rank",
                most,
                rows_needed(ranks, heads, kv_heads, size),
                mistakes={KV_REPEATED: 3 * heads // ranks * size},
                task=task,
            )
            bias = torch.arange(float(len(weight)))
            of_bias = [split_qkv(bias, rank, ranks, heads, kv_heads) for rank in range(ranks)]
            marked = weight.clone()
            marked[:, 0] = bias
            rows = [
                split_qkv(marked, rank, ranks, heads, kv_heads)[:, 0].contiguous() for rank in range(ranks)
            ]
            report.on_every_rank(
                "of a bias the same rows",
                of_bias,
                rows,
                task="`weight` may also be a bias, with one dimension.",
            )
