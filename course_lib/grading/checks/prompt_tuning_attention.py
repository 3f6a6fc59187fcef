"""The check of 18.3: attention with a prefix that all sequences share, and how much of it goes to the prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.grading.checks.recomputation_counted import Alive
from course_lib.grading.report import Report, check

Attention = Callable[..., tuple[Tensor, Tensor]]

OUTPUT = "`output` is attention over the n keys and values of the prefix and those of the text together"
SHARE = "`share` is the sum of the weights that a query gives to the prefix"
MASK = "A token of text is hidden from all queries where `mask` is false, and the prefix is never hidden."
LARGE = "They may be large, several hundreds."
ALIVE = "At most 6 · batch · heads · seq · (n + seq + size) numbers of 4 bytes are alive at once."


class Case(NamedTuple):
    name: str
    batch: int
    heads: int
    seq: int
    size: int
    n: int
    lengths: tuple[int, ...] | None = None  # tokens of each sequence; None: there is no mask
    left: bool = False
    scale: float = 1.0  # of the queries


CASES = (
    Case("no mask", 2, 2, 4, 8, 3),
    Case("padding at the right", 3, 2, 5, 4, 2, (5, 2, 3)),
    Case("padding at the left", 3, 1, 5, 4, 3, (5, 2, 3), left=True),
    Case("one virtual token, one token", 1, 1, 1, 4, 1),
    Case("as many heads as sequences, a longer prefix than text", 3, 3, 2, 4, 7, (2, 1, 2)),
    Case("a sequence of padding alone", 2, 2, 3, 4, 2, (0, 3)),
    Case("large scores", 2, 2, 4, 16, 3, (4, 3), scale=300.0),
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
                _attended(*inputs)[0],
                tolerance=tolerance,
                mistakes=OUTPUTS,
                given=tuple(inputs),
                task=task,
            )
            plain = plain or inputs.mask is None
            report.close(
                "the share of the prefix",
                share.detach().double(),
                _attended(*inputs)[1],
                tolerance=tolerance,
                mistakes=SHARES,
                given=tuple(inputs),
                task=SHARE,
            )
            _gradients(report, inputs, own, output)
    _memory(report, prefix_attention)


def _gradients(report: Report, inputs: Inputs, own: list[Tensor], output: Tensor) -> None:
    upstream = torch.arange(output.numel(), dtype=output.dtype).view_as(output) / output.numel()
    if not output.requires_grad:
        report.fail("backward reaches neither `P_K` nor `P_V`", task="backward reaches `P_K` and `P_V`.")
    (output * upstream).sum().backward()
    P_K, P_V = (x.double().requires_grad_() for x in inputs[3:5])
    (_attended(*inputs[:3], P_K, P_V, inputs.mask)[0] * upstream.double()).sum().backward()
    for name, got, want in (("P_K", own[3].grad, P_K.grad), ("P_V", own[4].grad, P_V.grad)):
        if got is None:
            report.fail(f"`{name}` has no gradient", task="backward reaches `P_K` and `P_V`.")
        report.close(
            f"the gradient of `{name}`",
            got.double(),
            want,
            tolerance=1e-3 * max(1.0, inputs.q.abs().max().item()),
            task="backward reaches `P_K` and `P_V`.",
        )


def _memory(report: Report, prefix_attention: Attention) -> None:
    """The target: keys and values of the prefix are not copied for each sequence, nor those of the text."""
    case = Case("16 sequences of 8 tokens, 64 virtual tokens, size 256", 16, 2, 8, 256, 64)
    with report.case(case.name):
        inputs = _inputs(case, 0)
        with Alive(*inputs[:5]) as alive, torch.no_grad():
            prefix_attention(*inputs)
        numbers = case.batch * case.heads * case.seq * (case.n + case.seq + case.size)
        report.at_most("bytes alive at once", alive.most, 6 * 4 * numbers, task=ALIVE)


# ---- what is right, and likely mistakes --------------------------------------------------------------------------


def _scores(q: Tensor, k: Tensor, P_K: Tensor) -> tuple[Tensor, Tensor]:
    q, k, P_K = q.double(), k.double(), P_K.double()
    scale = q.shape[-1] ** -0.5
    return scale * q @ P_K.mT, scale * q @ k.mT


def _hidden(mask: Tensor | None, like: Tensor) -> Tensor:
    return (
        torch.zeros_like(like, dtype=torch.bool) if mask is None else ~mask[:, None, None, :].expand_as(like)
    )


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    P_K: Tensor,
    P_V: Tensor,
    mask: Tensor | None,
    *,
    scaled: tuple[float, float] = (1.0, 1.0),
    masked: str = "text",
) -> tuple[Tensor, Tensor]:
    """Output and share in float64.

    Args:
        scaled: what the scores of the prefix and those of the text are multiplied by, for a mistake.
        masked: what the mask hides; only "text" is right.
    """
    scores = torch.cat([by * part for by, part in zip(scaled, _scores(q, k, P_K), strict=True)], -1)
    n, width = P_K.shape[1], scores.shape[-1]
    seen = torch.ones(len(q), k.shape[2], dtype=torch.bool) if mask is None else mask
    columns = torch.nn.functional.pad(seen, (n, 0), value=True)[:, None, None, :]  # seen by every query
    if masked == "nothing":
        columns = torch.ones_like(columns)
    elif masked == "wrong end":
        columns = columns.roll(-n, -1)
    elif masked == "prefix too" and mask is not None:
        columns = columns & (torch.arange(width) >= n)
    elif masked == "queries":
        columns = seen[:, None, :, None] | (torch.arange(width) < n)
    elif masked == "later":
        columns = columns & torch.ones(scores.shape[2], width, dtype=torch.bool).tril(n)
    if masked == "weights":
        weights = scores.softmax(-1) * columns
    else:
        weights = scores.masked_fill(~columns, float("-inf")).softmax(-1)
    V = torch.cat((P_V.double().expand(len(q), -1, -1, -1), v.double()), 2)
    return weights @ V, weights[..., :n].sum(-1)


def _two_softmaxes(q: Tensor, k: Tensor, v: Tensor, P_K: Tensor, P_V: Tensor, mask: Tensor | None) -> Tensor:
    to_prefix, to_text = _scores(q, k, P_K)
    to_text = to_text.masked_fill(_hidden(mask, to_text), float("-inf"))
    return to_prefix.softmax(-1) @ P_V.double() + to_text.softmax(-1) @ v.double()


def _without(*given: Any) -> Tensor:
    q, k, v, P_K, _, mask = given
    _, to_text = _scores(q, k, P_K)
    return to_text.masked_fill(_hidden(mask, to_text), float("-inf")).softmax(-1) @ v.double()


def _no_maximum(*given: Any) -> Tensor:
    """Exponentials that are not brought to a common maximum: each part to its own."""
    q, k, v, P_K, P_V, mask = given
    to_prefix, to_text = _scores(q, k, P_K)
    to_text = to_text.masked_fill(_hidden(mask, to_text), float("-inf"))
    w_p, w_t = ((s - s.amax(-1, keepdim=True)).exp() for s in (to_prefix, to_text))
    total = w_p.sum(-1, keepdim=True) + w_t.sum(-1, keepdim=True)
    return (w_p @ P_V.double() + w_t @ v.double()) / total


def _mistake(**settings: Any) -> Callable[..., Tensor]:
    return lambda *given: _attended(*given, **settings)[0]


def _by_root(power: float, of_text: bool = True) -> Callable[..., Tensor]:
    """Scores multiplied by a power of the root of the size; those of the prefix alone unless ``of_text``."""

    def program(*given: Any) -> Tensor:
        by = given[0].shape[-1] ** (power / 2)
        return _attended(*given, scaled=(by, by if of_text else 1.0))[0]

    return program


def _if_finite(program: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
    """A mistake that gives NaN, as where a sequence is all padding, says nothing about the answer."""

    def finite(*given: Any) -> Tensor | None:
        value = program(*given)
        return value if value.isfinite().all() else None

    return finite


OVERFLOW = "the exponential of a score of some hundreds is infinite. Subtract the row's maximum first."
NO_TEXT = (
    "the largest score of this text is -inf, and -inf - (-inf) is NaN. Take the maximum over prefix and text."
)
OUTPUTS: dict[str, Callable[..., Tensor | None]] = {
    "when prefix and text each have a softmax of their own, and both results are added": _two_softmaxes,
    "when prefix and text each have a softmax of their own, and the mean of both is taken": lambda *given: (
        _two_softmaxes(*given) / 2
    ),
    "when each of the two parts is brought to a maximum of its own": _no_maximum,
    "when the prefix is left out": _without,
    "when scores are not divided by the root of the size": _by_root(1),
    "when the scores of the prefix are not divided by the root of the size": _by_root(1, of_text=False),
    "when scores are divided by the size, and not by its root": _by_root(-1),
    "when the mask is left out": _mistake(masked="nothing"),
    "when the mask is lengthened at the wrong end": _mistake(masked="wrong end"),
    "when the mask hides the prefix, too": _mistake(masked="prefix too"),
    "when the mask hides queries in place of keys": _mistake(masked="queries"),
    "when hidden tokens are taken out behind the softmax, and not in front of it": _mistake(masked="weights"),
    "when a query does not see the text behind it": _mistake(masked="later"),
    "when keys and values of the prefix are exchanged": lambda q, k, v, P_K, P_V, mask: _attended(
        q, k, v, P_V, P_K, mask
    )[0],
}
OUTPUTS = {sentence: _if_finite(program) for sentence, program in OUTPUTS.items()}
SHARES: dict[str, Callable[..., Tensor]] = {
    "when it is the share of the text": lambda *given: 1 - _attended(*given)[1],
    "when it is the mean of the weights, and not their sum": lambda *given: (
        _attended(*given)[1] / given[3].shape[1]
    ),
    "when it is the share of the first virtual token alone": lambda q, k, v, P_K, P_V, mask: _first_share(
        q, k, P_K, mask
    ),
    "when hidden tokens of text count in the sum of the weights": lambda *given: _attended(
        *given, masked="nothing"
    )[1],
}


def _first_share(q: Tensor, k: Tensor, P_K: Tensor, mask: Tensor | None) -> Tensor:
    to_prefix, to_text = _scores(q, k, P_K)
    to_text = to_text.masked_fill(_hidden(mask, to_text), float("-inf"))
    return torch.cat((to_prefix, to_text), -1).softmax(-1)[..., 0]
