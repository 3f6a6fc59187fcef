"""The checks of 15.1 and 15.2: parts of a softmax merged, and attention tile by tile, with bytes counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.grading.alive import Alive
from course_lib.grading.checks.flash_attention_mistakes import MERGED, TILED_LOGSUMEXPS, TILED_OUTPUTS, Part
from course_lib.grading.report import Report, check

Merge = Callable[[Iterable[Part]], Part]
Attention = Callable[[Tensor, Tensor, Tensor, int, int], tuple[Tensor, Tensor]]


def exact(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Attention in float64 with all scores at once: the output and the logsumexp; ``hidden`` pairs do not count."""
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def pair(report: Report, result: object, task: str) -> tuple[Tensor, Tensor]:
    """The two tensors that an answer returned; the case fails where it returned something else."""
    two = isinstance(result, tuple | list) and len(result) == 2
    if not two or not all(isinstance(t, Tensor) for t in result):
        kind = type(result).__name__
        report.fail(
            "nothing was returned" if result is None else f"the result, a {kind}, is not two tensors",
            task=task,
        )
    return tuple(result)


# 15.1


def _parts(
    keys: list[int], shift: float = 0.0, unseen: Callable[[Tensor, int], None] | None = None
) -> list[Part]:
    """Attention of 3 heads and 8 rows over each of several parts of the keys; rows that see no key give zeros."""
    parts = []
    for number, count in enumerate(keys):
        scores = torch.randn(3, 8, count, dtype=torch.float64) + shift * torch.randn(
            3, 8, 1, dtype=torch.float64
        )
        if unseen is not None:
            unseen(scores, number)
        logsumexp = scores.logsumexp(-1)
        weights = (scores - logsumexp.nan_to_num(neginf=0.0)[..., None]).exp()
        parts.append(((weights @ torch.randn(count, 16, dtype=torch.float64)).float(), logsumexp.float()))
    return parts


def _some_rows(scores: Tensor, number: int) -> None:
    scores[:, (number + torch.arange(3)) % 8] = -math.inf  # another three rows in each part


def _one_row(scores: Tensor, number: int) -> None:
    scores[1, 5] = -math.inf


def _merged(parts: list[Part]) -> Part:
    """All parts at once, in float64."""
    outputs, sums = (torch.stack([part[i].double() for part in parts]) for i in (0, 1))
    logsumexp = sums.logsumexp(0)
    weights = (sums - logsumexp.nan_to_num(neginf=0.0)).exp()
    return (weights[..., None] * outputs).sum(0), logsumexp


@check
def check_15_1(report: Report, merge: Merge) -> None:
    torch.manual_seed(report.seed())
    cases = {
        "2 parts of 4 and 9 keys": _parts([4, 9]),
        "5 parts": _parts([3, 1, 20, 2, 7]),
        "one part": _parts([6]),
        "logsumexps of hundreds": _parts([5, 6, 7], shift=300.0),
        "logsumexps of minus hundreds": _parts([5, 6, 7], shift=-300.0),
        "parts in which some rows see no key": _parts([4, 4, 4], unseen=_some_rows),
        "a row that sees no key in any part": _parts([4, 4, 4], unseen=_one_row),
        "40 outputs in bf16": [(output.bfloat16(), logsumexp) for output, logsumexp in _parts([2] * 40)],
    }
    for name, parts in cases.items():
        with report.case(name):
            _try_merge(report, merge, parts)
    with report.case("64 parts"):
        _count_merge(report, merge, _parts([1] * 64))


def _try_merge(report: Report, merge: Merge, parts: list[Part]) -> None:
    result = merge((output.clone(), logsumexp.clone()) for output, logsumexp in parts)
    output, logsumexp = pair(report, result, "Return the output and the logsumexp over the keys of all parts")
    want = _merged(parts)
    if parts[0][1].abs().max() > 100 and parts[0][1].isfinite().all():
        report.true(
            bool(output.isfinite().all() and logsumexp.isfinite().all()),
            "every number is finite",
            "some numbers are not finite",
            got="not finite",
            mistakes={"when exp is taken of a logsumexp from which no maximum was subtracted": "not finite"},
            given=(),
            task="Logsumexps can be several hundreds or minus several hundreds",
        )
    for i, (what, got) in enumerate({"the output": output, "the logsumexp": logsumexp}.items()):
        report.close(
            what,
            got,
            want[i],
            tolerance=1e-4,
            mistakes={s: lambda p, program=program, i=i: program(p)[i] for s, program in MERGED.items()},
            given=(parts,),
            task="Return the output and the logsumexp over the keys of all parts",
            likely=_likely_in_merge(parts, got),
        )


def _likely_in_merge(parts: list[Part], got: object) -> str | None:
    if parts[0][0].dtype == torch.bfloat16:
        return "outputs in bf16 are weighted or added up in bf16"
    if isinstance(got, Tensor) and not got.isfinite().all() and parts[0][1].isneginf().any():
        return "a row sees no key, and minus infinity is subtracted from itself, or zero divided by zero"
    return None


def _count_merge(report: Report, merge: Merge, parts: list[Part]) -> None:
    with Alive(*(tensor for part in parts for tensor in part)) as alive:
        output, _ = pair(report, merge((o.clone(), s.clone()) for o, s in parts), "Return the output")
    report.close("the output", output, _merged(parts)[0], tolerance=1e-4)
    one = sum(tensor.nbytes for tensor in parts[0])
    report.at_most(
        "bytes alive at once",
        alive.most,
        8 * one,
        mistakes={
            "when all parts are there before the first two are merged": alive.most
            if alive.most > 60 * one
            else None
        },
        task="At most eight tensors of the size of one output are alive at once, however many parts there are.",
    )


# 15.2


class Tiles(NamedTuple):
    """One case: lengths, and the tiles that they are cut into."""

    rows: int
    keys: int
    tile_rows: int
    tile_keys: int
    heads: int = 2
    size: int = 16

    def __str__(self) -> str:
        return f"{self.rows} × {self.keys}, tiles of {self.tile_rows} × {self.tile_keys}"

    def draw(self) -> Iterator[Tensor]:
        for length in (self.rows, self.keys, self.keys):
            yield torch.randn(self.heads, length, self.size)


EVEN, UNEVEN, LARGE = Tiles(48, 64, 16, 16), Tiles(50, 70, 16, 32), Tiles(256, 1024, 32, 32, heads=1)


@check
def check_15_2(report: Report, attention: Attention) -> None:
    torch.manual_seed(report.seed())
    for tiles in (
        EVEN,
        UNEVEN,
        Tiles(70, 50, 32, 16),
        Tiles(1, 1, 16, 16),
        Tiles(40, 30, 64, 64),
        Tiles(5, 7, 1, 1),
    ):
        with report.case(str(tiles)):
            _try_attention(report, attention, tiles, *tiles.draw())
    with report.case("scores of up to several hundreds"):
        q, k, v = UNEVEN.draw()  # whole numbers, so that scores are exact in float32, too
        _try_attention(report, attention, UNEVEN, (5 * q).round(), (5 * k).round(), v)
    with report.case("rows with all scores at minus hundreds"):
        _try_attention(report, attention, UNEVEN, (5 * q).round().abs() + 9, -(5 * k).round().abs() - 9, v)
    with report.case("bf16, 300 keys one by one"):
        tiles = Tiles(4, 300, 4, 1)
        q, k, v = (t.bfloat16() for t in tiles.draw())
        # Values of one sign: their sum grows until one more value is less than the last bit of a sum in bf16.
        _try_attention(report, attention, tiles, q / 8, k, v.abs(), tolerance=4e-3, explain=False)
    with report.case("bf16, scores of up to several hundreds"):
        q, k, v = UNEVEN.draw()
        q, k, v = (t.bfloat16() for t in ((5 * q).round(), (5 * k).round(), v))
        _try_attention(report, attention, UNEVEN, q, k, v, tolerance=4e-3, explain=False)
    with report.case(str(LARGE)):
        q, k, v = LARGE.draw()
        with Alive(q, k, v) as alive:
            result = attention(q, k, v, LARGE.tile_rows, LARGE.tile_keys)
        _compare_attention(report, result, (q, k, v), LARGE, 1e-4, explain=False)
        r, c, d = LARGE.tile_rows, LARGE.tile_keys, LARGE.size
        results = sum(t.nbytes for t in result)
        report.at_most(
            "bytes alive at once",
            alive.most,
            2 * results + 6 * 4 * (r * c + r * d + c * d),
            task="besides the result, which may be there twice, at most six times the bytes of one tile of scores, "
            "one of queries and one of keys",
        )


def _try_attention(
    report: Report,
    attention: Attention,
    tiles: Tiles,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tolerance: float = 1e-4,
    explain: bool = True,
) -> None:
    before = [t.clone() for t in (q, k, v)]
    result = attention(q, k, v, tiles.tile_rows, tiles.tile_keys)
    _compare_attention(report, result, before, tiles, tolerance, explain)
    same = all(one.equal(other) for one, other in zip((q, k, v), before, strict=True))
    report.true(
        same,
        "q, k and v are as they were",
        "q, k or v has other values",
        task="`q`, `k` and `v` stay as they are.",
    )


def _compare_attention(
    report: Report, result: object, given: Iterable[Tensor], tiles: Tiles, tolerance: float, explain: bool
) -> None:
    """``explain``: whether likely mistakes are tried, which takes longest where there are many tiles."""
    q, k, v = given
    output, logsumexp = pair(report, result, "Return two tensors")
    want = exact(q, k, v)
    narrow = "something that is added up over the tiles, or a tile of scores, is in bf16"
    likely = narrow if q.dtype == torch.bfloat16 else None
    arguments = (q, k, v, tiles.tile_rows, tiles.tile_keys)
    report.close(
        "the output",
        output,
        want[0],
        tolerance=tolerance,
        mistakes=TILED_OUTPUTS if explain else None,
        given=arguments,
        task="the output, softmax($qk^T/\\sqrt{d}$)$\\,v$",
        likely=likely,
    )
    report.true(
        output.dtype == q.dtype,
        "the output has the dtype of q",
        f"the output is in {output.dtype}, and q in {q.dtype}",
        task="The output has the dtype of `q`",
    )
    report.true(
        logsumexp.dtype == torch.float32,
        "the logsumexp is in float32",
        f"the logsumexp is in {logsumexp.dtype}",
        task="the logsumexp is in float32",
    )
    report.close(
        "the logsumexp",
        logsumexp,
        want[1],
        tolerance=1e-4,  # in float32, whatever q is in
        mistakes=TILED_LOGSUMEXPS if explain else None,
        given=arguments,
        task="the logsumexp of each row of scores",
        likely=likely,
    )
