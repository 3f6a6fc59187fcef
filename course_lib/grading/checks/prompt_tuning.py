"""The check of 18.1: a prompt in front of padded text, with its mask and its positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.grading.alive import Alive
from course_lib.grading.report import Report, check

PutInFront = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]

EMBEDDINGS = "The first n places of every sequence are the rows of `P`, in their order, and its text follows."
MASK = "All virtual tokens are seen, and the text's own entries stay as they are."
POSITIONS = "The virtual tokens of every sequence have the positions 0 to n - 1, and its first token of text has n, the next one n + 1, and so on. Padding is not counted, and its own position is 0."  # noqa: E501
ALIVE = "At most 5/4 · batch · (n + seq) · d numbers of 4 bytes are alive at once."
THREE = "Return three tensors"


class Case(NamedTuple):
    name: str
    n: int
    lengths: tuple[int, ...]  # tokens of each sequence
    seq: int
    left: bool = False  # padding stands at the left
    mask: torch.dtype = torch.bool
    dtype: torch.dtype = torch.float32


CASES = (
    Case("one sequence without padding", 3, (5,), 5),
    Case("padding at the right", 3, (5, 2, 4), 5),
    Case("padding at the left", 3, (5, 2, 4), 5, left=True),
    Case("one virtual token", 1, (3, 1), 4, left=True),
    Case("more virtual tokens than text", 6, (2, 1), 2),
    Case("a mask of int64", 2, (4, 3), 4, mask=torch.int64),
    Case("a mask of float32", 2, (1, 3), 4, left=True, mask=torch.float32),
    Case("a sequence of padding alone", 2, (0, 3), 3),
    Case("a model of 16 bits", 4, (6, 3, 1), 6, dtype=torch.bfloat16),
)
D = 8


def _inputs(case: Case, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    P = torch.randn(case.n, D, generator=draw, requires_grad=True)
    embedded = torch.randn(len(case.lengths), case.seq, D, generator=draw).to(case.dtype)
    places, lengths = torch.arange(case.seq), torch.tensor(case.lengths)[:, None]
    mask = places >= case.seq - lengths if case.left else places < lengths
    return P, embedded, mask.to(case.mask)


@check
def check_18_1(report: Report, put_in_front: PutInFront) -> None:
    for case in CASES:
        with report.case(case.name):
            P, embedded, mask = _inputs(case, report.seed())
            own = embedded.clone(), mask.clone()
            got = put_in_front(P, *own)
            if (
                not isinstance(got, (tuple, list))
                or len(got) != 3
                or not all(isinstance(x, Tensor) for x in got)
            ):
                report.fail("the result is not three tensors", task=THREE)
            if not (own[0].equal(embedded) and own[1].equal(mask)):
                report.fail(
                    "`embedded` or `mask` has changed", task="`embedded` and `mask` stay as they are."
                )
            _compare(report, case, (P.detach(), embedded, mask), got)
            _trained(report, P, got[0])
    for dtype, name in (
        (torch.float32, "16 sequences of 16 tokens, 64 virtual tokens, d 512"),
        (torch.bfloat16, "the same in 16 bits"),
    ):
        with report.case(name):
            P, embedded, mask = (
                torch.randn(64, 512),
                torch.randn(16, 16, 512).to(dtype),
                torch.ones(16, 16).bool(),
            )
            with Alive(P, embedded, mask) as alive, torch.no_grad():
                put_in_front(P, embedded, mask)
            text, prompts = 16 * 16 * 512, 16 * 64 * 512  # numbers
            mistakes = {
                "when a copy of the prompt is made for every sequence first": (2 * prompts + text) * 4
            }
            if dtype == torch.bfloat16:
                mistakes = {
                    "when all is put together in 32 bits, and then brought to 16": (text + prompts) * 6
                }
            report.at_most(
                "bytes alive at once", alive.most, 5 * (text + prompts), mistakes=mistakes, task=ALIVE
            )


def _compare(report: Report, case: Case, given: tuple[Tensor, Tensor, Tensor], got: Any) -> None:
    embeddings, mask, positions = got
    report.close(
        "the embeddings",
        embeddings.detach().float(),
        _embeddings(*given),
        tolerance=1e-2 if case.dtype == torch.bfloat16 else 1e-6,
        mistakes=IN_FRONT,
        given=given,
        task=EMBEDDINGS,
    )
    report.true(
        embeddings.dtype == case.dtype,
        "they have the dtype of `embedded`",
        f"the embeddings are {embeddings.dtype}, and `embedded` is {case.dtype}",
        task="`embeddings` has the dtype of `embedded`",
    )
    report.equal("the mask", mask.detach().long(), _mask(*given), mistakes=MASKS, given=given, task=MASK)
    report.true(
        mask.dtype == case.mask,
        "it has the dtype of `mask`",
        f"the mask is {mask.dtype}, and `mask` is {case.mask}",
        task="`mask` has the dtype of the given mask",
    )
    if positions.is_floating_point():
        report.fail(
            f"the positions are {positions.dtype}", task="`positions` `(batch, n + seq)`, whole numbers."
        )
    report.equal(
        "the positions",
        positions.detach().long(),
        _positions(*given),
        mistakes=PLACES,
        given=given,
        task=POSITIONS,
    )


def _trained(report: Report, P: Tensor, embeddings: Tensor) -> None:
    upstream = torch.ones_like(embeddings).cumsum(0)  # another one for each sequence
    if not embeddings.requires_grad:
        report.fail("backward does not reach `P`", task="backward reaches `P`.")
    (embeddings * upstream).sum().backward()
    sequences = len(embeddings)
    want = torch.full_like(P, sequences * (sequences + 1) / 2)
    report.close(
        "the gradient of `P` is the sum over the batch",
        P.grad,
        want,
        mistakes={"when only the first sequence has the trained prompt": torch.ones_like(P)},
        task="backward reaches `P`.",
    )


# ---- what is right, and likely mistakes --------------------------------------------------------------------------


def _embeddings(P: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
    return torch.cat((P.expand(len(embedded), -1, -1), embedded.float()), 1)


def _mask(P: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
    return torch.cat((torch.ones(len(mask), len(P), dtype=torch.int64), mask.long()), 1)


def _positions(P: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
    seen = _mask(P, embedded, mask)
    return (seen.cumsum(1) - 1) * seen


def _behind(P: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
    return torch.cat((embedded.float(), P.expand(len(embedded), -1, -1)), 1)


def _interleaved(P: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
    rows = P.repeat_interleave(len(embedded), 0).view(len(embedded), *P.shape)
    return torch.cat((rows, embedded.float()), 1)


def _behind_padding(P: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
    first = mask.long().argmax(1).tolist()  # of the tokens; what stands before it is padding
    rows = [torch.cat((x[:i], P, x[i:])) for x, i in zip(embedded.float(), first, strict=True)]
    return torch.stack(rows)


def _added(P: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
    text = embedded.float() * mask[..., None].float()
    return torch.cat((P.expand(len(embedded), -1, -1), text), 1)


def _by_column(P: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
    return torch.arange(len(P) + mask.shape[1]).expand(len(mask), -1)


def _by_column_without_padding(*given: Tensor) -> Tensor:
    return _by_column(*given) * _mask(*given)


def _text_from(first: Callable[[int], int]) -> Callable[..., Tensor]:
    """The text's positions begin at ``first(n)``."""

    def program(P: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
        n, real = len(P), mask.long()
        text = (real.cumsum(1) - 1 + first(n)) * real
        return torch.cat((torch.arange(n).expand(len(mask), -1), text), 1)

    return program


def _counted_on(P: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
    return (_mask(P, embedded, mask).cumsum(1) - 1).clamp(min=0)


def _one_too_many(P: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
    seen = _mask(P, embedded, mask)
    return seen.cumsum(1) * seen


def _padding_at_one(*given: Tensor) -> Tensor:
    return _positions(*given).masked_fill(_mask(*given) == 0, 1)


def _prompt_at_zero(P: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
    places = _positions(P, embedded, mask).clone()
    places[:, : len(P)] = 0
    return places


IN_FRONT: dict[str, Callable[..., Tensor]] = {
    "when the prompt stands behind the text": _behind,
    "when each row of `P` is repeated in place of the whole `P`": _interleaved,
    "when padding is set to zero": _added,
    "when the prompt stands behind the padding at the left": _behind_padding,
}
MASKS: dict[str, Callable[..., Tensor]] = {
    "when the mask hides the virtual tokens": lambda P, e, mask: torch.nn.functional.pad(
        mask.long(), (len(P), 0)
    ),
    "when the mask is lengthened at the wrong end": lambda P, e, mask: torch.nn.functional.pad(
        mask.long(), (0, len(P)), value=1
    ),
    "when nothing is hidden any more": lambda P, e, mask: torch.ones(
        len(mask), len(P) + mask.shape[1], dtype=torch.int64
    ),
}
PLACES: dict[str, Callable[..., Tensor]] = {
    "when positions are counted by columns, and padding counts": _by_column,
    "when padding has the position 0 and is counted all the same": _by_column_without_padding,
    "when the text's positions begin at 0": _text_from(lambda n: 0),
    "when the text's positions begin at n - 1": _text_from(lambda n: n - 1),
    "when the text's positions begin at n + 1": _text_from(lambda n: n + 1),
    "when padding has the position of the token before it": _counted_on,
    "when padding has the position 1": _padding_at_one,
    "when the first position is 1": _one_too_many,
    "when all virtual tokens have the position 0": _prompt_at_zero,
}
