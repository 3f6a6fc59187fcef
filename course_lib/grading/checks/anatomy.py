"""The checks of chapter 02: BPE, rotary positions, grouped heads; anatomy_shapes.py has the others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.checks import anatomy_bpe as bpe
from course_lib.grading.checks import anatomy_heads as heads_of
from course_lib.grading.checks import anatomy_rope as rope
from course_lib.grading.report import Report, check


def _normal(report: Report, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(report.seed())).to(dtype)


# ---- 02.1 -------------------------------------------------------------------------------------------------


@check
def check_02_1(report: Report, merge_once: Callable[..., Any], encode: Callable[..., Any]) -> None:
    cases = {  # the words and how often each stands in the text
        "one word of three equal ids": {(0, 0, 0): 1},
        "a tie between pairs": {(2, 1): 3, (0, 5): 3, (4, 3): 3},
        "a frequent word": {(0, 1): 2, (1, 1, 2): 1, (1, 2): 1, (3, 3): 4},
        "three equal ids against two": {(0, 0, 0): 2, (1, 2): 3},
        "words of one id": {(4,): 7, (1,): 2},
        "no words": {},
    }
    cases |= {
        f"{n} random words of {k} letters": bpe.drawn(report.seed(), k, n, 9) for n, k in ((30, 3), (40, 5))
    }
    for name, words in cases.items():
        with report.case(name):
            given, new = dict(words), 50
            found = merge_once(given, new)
            report.true(
                isinstance(found, tuple | list) and len(found) == 2,
                "a pair and words",
                f"the result is {type(found).__name__}, not the pair `(pair, words)`",
                task="Return `(pair, words)`",
            )
            pair, after = bpe.merged_once(words, new)
            likely = bpe.MERGING
            if pair is None:  # only one mistake finds a pair then, if there are words at all
                likely = {bpe.ACROSS: bpe.MERGING[bpe.ACROSS]} if words else {}
            report.equal(
                "the pair that stands most often",
                found[0],
                pair,
                mistakes={s: bpe.pair_of(program) for s, program in likely.items()},
                given=(words, new),
                task="Choose the pair that stands most often; where several stand equally often, the smallest pair",
            )
            report.equal(
                "the words after the merge",
                found[1],
                after,
                mistakes={s: bpe.words_of(program) for s, program in likely.items()},
                given=(words, new),
                task="replaced by the id `new`, from left to right",
            )
            report.true(
                given == words, "the given words are as they were", "`words` has been changed in place"
            )
    chain = {(0, 0): 9, (9, 9): 10, (0, 1): 11, (10, 11): 12, (1, 0): 13}
    texts = {
        "no ids": ([], chain),
        "one id": ([3], chain),
        "no pair that was learned": ([3, 4, 3], chain),
        "five equal ids": ([0] * 5, chain),
        "merges of merges": ([0, 0, 0, 0, 0, 1], chain),
        "a later merge stands first": ([1, 0, 0, 1], chain),
    }
    overlap = {(1, 2): 9, (0, 1): 10, (2, 3): 11, (9, 3): 12, (1, 11): 13, (0, 9): 14}
    texts["merges that overlap"] = ([0, 1, 2, 3], overlap)
    merges = bpe.learned(bpe.drawn(report.seed(), 4, 60, 12), 4, 60)
    for n in (7, 25):
        ids = random.Random(report.seed()).choices(range(4), k=n)
        texts[f"{n} ids and 60 merges"] = (ids, merges)
    for name, (ids, known) in texts.items():
        with report.case(name):
            given, table = list(ids), dict(known)
            found = encode(given, table)
            report.equal(
                "the encoded ids",
                found,
                bpe.encoded(ids, known),
                mistakes=bpe.ENCODING,
                given=(ids, known),
                task="it merges the pair that was learned first",
            )
            report.true(
                given == ids and table == known,
                "ids and merges are as they were",
                "`ids` or `merges` has been changed in place",
            )
    with report.case("8 ids and 3,000 merges"):
        many = bpe.CountedMerges({(i, i + 1): 10_000 + i for i in range(100, 3100)})
        ids = [0, 100, 101, 5, 3000, 3001, 7, 100]
        found = encode(list(ids), many)
        looked = many.looked
        report.equal("the encoded ids", found, bpe.encoded(ids, dict(many)))
        report.at_most(
            "look-ups in `merges`",
            looked,
            2 * len(ids) ** 2,
            task="`encode` looks into `merges` at most 2 n² times for n ids, however many merges there are",
        )


# ---- 02.2 -------------------------------------------------------------------------------------------------


@check
def check_02_2(report: Report, rotate: Callable[..., Tensor], shift: Callable[..., Tensor]) -> None:
    cases = {  # shape of x, positions, turned, base, dtype
        "half of a head of 8": ((2, 3, 5, 8), range(5), 4, 10_000.0, torch.float32),
        "a whole head of 6": ((1, 2, 4, 6), range(4), 6, 100.0, torch.float32),
        "one pair": ((3, 1, 3, 5), range(3), 2, 10_000.0, torch.float32),
        "one token at position 40": ((2, 2, 1, 8), [40], 4, 500.0, torch.float32),
        "positions in any order": ((1, 2, 4, 8), [7, 0, 90, 7], 8, 10_000.0, torch.float32),
        "16 bits, positions from 3,000": ((1, 2, 6, 8), range(3000, 3006), 4, 100.0, torch.bfloat16),
    }
    for name, (shape, places, turned, base, dtype) in cases.items():
        with report.case(name):
            x, positions = _normal(report, *shape, dtype=dtype), torch.tensor(list(places))
            kept, tolerance = x.clone(), 0.03 if dtype == torch.bfloat16 else 1e-3
            given = (kept, positions, turned, base)
            found = rotate(x, positions.clone(), turned, base)
            report.close(
                "the turned heads",
                _wide(found),
                rope.rotated(*given).float(),
                tolerance=tolerance,
                mistakes={s: _float(program) for s, program in rope.ROTATING.items()},
                given=given,
                task="is turned by the angle $m\\,b^{-2i/t}$"
                if dtype == torch.float32
                else "so compute angles in fp32",
            )
            report.true(x.equal(kept), "the input is as it was", "`x` has been changed in place")
            report.true(
                found.dtype == dtype,
                f"a result of {str(dtype)[6:]}",
                f"the result is {str(found.dtype)[6:]}, and `x` is {str(dtype)[6:]}",
                task="The result has the shape and the dtype of `x`.",
            )
            by = 3
            late = rope.rotated(kept, positions + by, turned, base)
            given = (late.clone(), by, turned, base)
            report.close(
                f"keys that are moved by {by}",
                _wide(moved := shift(late, by, turned, base)),
                rope.shifted(*given).float(),
                tolerance=tolerance,
                mistakes={s: _float(program) for s, program in rope.SHIFTING.items()},
                given=given,
                task="as if each token stood `by` places earlier",
            )
            report.true(
                moved.dtype == dtype,
                f"keys of {str(dtype)[6:]}",
                f"`shift` returns {str(moved.dtype)[6:]}, and the keys are {str(dtype)[6:]}",
                task="The result has their shape and their dtype.",
            )
            report.true(late.equal(given[0]), "the keys are as they were", "`keys` has been changed in place")
    with report.case("gradients, and products at other places"):
        q, k = (_normal(report, 1, 2, 5, 8) for _ in range(2))
        positions = torch.arange(5)

        def products(offset: int) -> Tensor:
            a, b = (rotate(x, positions + offset, 4, 10_000.0) for x in (q, k))
            return a @ b.transpose(-1, -2)

        report.close(
            "the same products of queries and keys 60 places later", products(60), products(0), tolerance=1e-3
        )
        leaf, weight = q.clone().requires_grad_(), _normal(report, 1, 2, 5, 8)
        out = rotate(leaf, positions, 4, 10_000.0)
        if out.requires_grad:
            out.backward(weight)
        report.close(
            "the gradient of the input",
            torch.zeros_like(q) if leaf.grad is None else leaf.grad,
            rope.rotated(weight, -positions, 4, 10_000.0),
            tolerance=1e-3,
            mistakes={"when the gradient is lost on its way": torch.zeros_like(q)},
            task="Autograd can run backward through `rotate`.",
        )
    with report.case("4 sequences of 3 heads and 50 tokens, 8 numbers turned"):
        x, positions = _normal(report, 4, 3, 50, 16), torch.arange(50)
        with rope.Angles() as ahead:
            rotate(x, positions, 8, 10_000.0)
        with rope.Angles() as back:
            shift(x, 3, 8, 10_000.0)
        task = "at most t/2 for each position in `rotate`, and t/2 in all in `shift`"
        report.at_most("angles in `rotate`", ahead.count, 50 * 4, task=task)
        report.at_most("angles in `shift`", back.count, 4, task=task)


def _wide(found: Any) -> Any:
    return found.detach().float() if isinstance(found, Tensor) else found


def _float(program: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *given: program(*given).float()


# ---- 02.3 -------------------------------------------------------------------------------------------------


@check
def check_02_3(report: Report, pool: Callable[..., Tensor], attend: Callable[..., Tensor]) -> None:
    for heads, kv_heads, size in ((8, 2, 4), (6, 3, 2), (4, 1, 3), (4, 4, 2), (12, 3, 1)):
        with report.case(f"{heads} heads become {kv_heads}"):
            weight = _normal(report, heads * size, 5)
            kept = weight.clone()
            report.close(
                "the pooled weight",
                pool(weight, heads, kv_heads),
                heads_of.pooled(kept, heads, kv_heads),
                mistakes=heads_of.POOLING,
                given=(kept, heads, kv_heads),
                task="the mean of `heads / kv_heads` neighbouring heads",
            )
            report.true(weight.equal(kept), "the weight is as it was", "`weight` has been changed in place")
            bias = _normal(report, heads * size)
            report.close(
                "a pooled bias",
                pool(bias, heads, kv_heads),
                heads_of.pooled(bias, heads, kv_heads),
                task="`weight` may also be a bias, with one dimension.",
            )
    cases = {  # batch, heads, KV heads, new tokens, tokens in all, size
        "2 KV heads, 6 tokens": (2, 4, 2, 6, 6, 3),
        "3 KV heads, the last 2 of 7 tokens": (1, 6, 3, 2, 7, 4),
        "1 KV head, one new token": (3, 4, 1, 1, 9, 2),
        "as many KV heads as heads": (2, 3, 3, 4, 5, 2),
        "one token": (1, 4, 2, 1, 1, 4),
    }
    for name, (batch, heads, kv_heads, m, n, size) in cases.items():
        with report.case(name):
            q, k, v = (
                _normal(report, batch, a, s, size) for a, s in ((heads, m), (kv_heads, n), (kv_heads, n))
            )
            given = (q.clone(), k.clone(), v.clone())
            report.close(
                "the attention of one device",
                attend(q, k, v),
                heads_of.attended(*given),
                tolerance=1e-4,
                mistakes=heads_of.ATTENDING,
                given=given,
                task="Query head i uses the KV head `i // (heads // kv_heads)`. The last query stands at the place "
                "of the last key, and each query sees the keys up to its own place. Scores are divided by the "
                "root of `size`",
            )
            unchanged = all(a.equal(b) for a, b in zip((q, k, v), given, strict=True))
            report.true(unchanged, "the inputs are as they were", "`q`, `k` or `v` has been changed in place")
    with report.case("a new token after 200, 16 heads of 32 numbers, 2 KV heads"):
        q, k, v = (_normal(report, 2, a, s, 32) for a, s in ((16, 1), (2, 201), (2, 201)))
        given = (q.clone(), k.clone(), v.clone())
        with heads_of.LargestTensor() as seen:
            found = attend(q, k, v)
        report.close("the attention of one device", found, heads_of.attended(*given), tolerance=1e-4)
        task = "no tensor is made that has more numbers than the scores or the result have"
        report.at_most("numbers of the largest new tensor", seen.numbers, 2 * 16 * 201, task=task)
