"""The check of 18.3: attention with a prefix that all sequences share, and how much of it goes to the prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.grading.alive import Alive
from course_lib.grading.checks.prompt_tuning_attention_mistakes import OUTPUTS, SHARES, attended
from course_lib.grading.report import Report, check

Attention = Callable[..., tuple[Tensor, Tensor]]

OUTPUT = "`output` is attention over the n keys and values of the prefix and those of the text together"
SHARE = "`share` is the sum of the weights that a query gives to the prefix"
MASK = "A token of text is hidden from all queries where `mask` is false, and the prefix is never hidden."
LARGE = "They may be large, several hundreds."
GRADIENTS = "Backward from `output` reaches `P_K` and `P_V`, and backward from `share` reaches `P_K`."
ALIVE = "At most 6 · batch · heads · seq · (n + seq + size) numbers of 4 bytes are alive at once."
OVERFLOW = "the exponential of a score of some hundreds is infinite. Subtract the row's maximum first."
NO_TEXT = (
    "the largest score of this text is -inf, and -inf - (-inf) is NaN. Take the maximum over prefix and text."
)


class Case(NamedTuple):
    name: str
    batch: int
    heads: int
    seq: int
    size: int
    n: int
    lengths: tuple[int, ...] | None = None  # tokens of each sequence; None: there is no mask
    left: bool = False
    scale: float = 1.0  # of the queries; if it is negative, all scores are


CASES = (
    Case("no mask", 2, 2, 4, 8, 3),
    Case("padding at the right", 3, 2, 5, 4, 2, (5, 2, 3)),
    Case("padding at the left", 3, 1, 5, 4, 3, (5, 2, 3), left=True),
    Case("one virtual token, one token", 1, 1, 1, 4, 1),
    Case("as many heads as sequences, a longer prefix than text", 3, 3, 2, 4, 7, (2, 1, 2)),
    Case("a sequence of padding alone", 2, 2, 3, 4, 2, (0, 3)),
    Case("large scores", 2, 2, 4, 16, 3, (4, 3), scale=300.0),
    Case("all scores far below zero", 2, 2, 4, 16, 3, (4, 2), scale=-300.0),
)


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    P_K: Tensor
    P_V: Tensor
    mask: Tensor | None


def _inputs(case: Case, seed: int) -> Inputs:
    draw = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, case.batch, case.heads, case.seq, case.size, generator=draw)
    P_K, P_V = torch.randn(2, case.heads, case.n, case.size, generator=draw)
    if case.scale < 0:
        q, k, P_K = q.abs(), k.abs(), P_K.abs()
    mask = None
    if case.lengths is not None:
        places, lengths = torch.arange(case.seq), torch.tensor(case.lengths)[:, None]
        mask = places >= case.seq - lengths if case.left else places < lengths
    return Inputs(case.scale * q, k, v, P_K, P_V, mask)


@check
def check_18_3(report: Report, prefix_attention: Attention) -> None:
    plain = False  # whether the answer is right without a mask
    for case in CASES:
        with report.case(case.name):
            inputs = _inputs(case, report.seed())
            own = [x.clone() for x in inputs[:5]]
            for P in own[3:]:
                P.requires_grad_()
            got = prefix_attention(*own, None if inputs.mask is None else inputs.mask.clone())
            if not isinstance(got, (tuple, list)) or len(got) != 2:
                report.fail("the result is no pair", task="Return `output` and `share`")
            output, share = got
            if case.scale > 1 and not report.failures and not output.isfinite().all():
                report.fail("the output holds values that are not finite", OVERFLOW, task=LARGE)
            if case.lengths and 0 in case.lengths and not report.failures and output.isnan().any():
                report.fail("the output holds NaN", NO_TEXT, task=MASK)
            task = MASK if plain and inputs.mask is not None else OUTPUT
            tolerance = 1e-4 if case.scale == 1 else 1e-3  # scores of several hundreds have fewer digits
            report.close(
                "the output",
                output.detach().double(),
                attended(*inputs)[0],
                tolerance=tolerance,
                mistakes=OUTPUTS,
                given=tuple(inputs),
                task=task,
            )
            plain = plain or inputs.mask is None
            report.close(
                "the share of the prefix",
                share.detach().double(),
                attended(*inputs)[1],
                tolerance=tolerance,
                mistakes=SHARES,
                given=tuple(inputs),
                task=SHARE,
            )
            _gradients(report, inputs, own, output, share)
    _memory(report, prefix_attention)


def _gradients(report: Report, inputs: Inputs, own: list[Tensor], output: Tensor, share: Tensor) -> None:
    if not output.requires_grad:
        report.fail("backward from `output` reaches neither `P_K` nor `P_V`", task=GRADIENTS)
    if not share.requires_grad:
        report.fail("backward from `share` does not reach `P_K`", task=GRADIENTS)
    (_upstream(output, output) + _upstream(share, share)).backward()
    P_K, P_V = (x.double().requires_grad_() for x in inputs[3:5])
    right = attended(*inputs[:3], P_K, P_V, inputs.mask)
    from_output = torch.autograd.grad(_upstream(right[0], output), (P_K, P_V), retain_graph=True)
    (from_share,) = torch.autograd.grad(_upstream(right[1], share), P_K)
    for name, got, want in (
        ("P_K", own[3].grad, from_output[0] + from_share),
        ("P_V", own[4].grad, from_output[1]),
    ):
        if got is None:
            report.fail(f"`{name}` has no gradient", task=GRADIENTS)
        report.close(
            f"the gradient of `{name}`",
            got.double(),
            want,
            tolerance=1e-3 * max(1.0, inputs.q.abs().max().item()),
            task=GRADIENTS,
        )


def _upstream(x: Tensor, like: Tensor) -> Tensor:
    """A sum with another weight for each number."""
    return (x * torch.arange(like.numel(), dtype=x.dtype).view_as(like) / like.numel()).sum()


def _memory(report: Report, prefix_attention: Attention) -> None:
    """The target: keys and values of the prefix are not copied for each sequence, nor those of the text."""
    case = Case("16 sequences of 8 tokens, 64 virtual tokens, size 256", 16, 2, 8, 256, 64)
    with report.case(case.name):
        inputs = _inputs(case, 0)
        with Alive(*inputs[:5]) as alive, torch.no_grad():
            prefix_attention(*inputs)
        numbers = case.batch * case.heads * case.seq * (case.n + case.seq + case.size)
        report.at_most("bytes alive at once", alive.most, 6 * 4 * numbers, task=ALIVE)
