"""The check of 15.3: attention's backward from the logsumexp, with bytes and FLOPs counted."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from course_lib.grading.alive import Alive
from course_lib.grading.checks.flash_attention import exact
from course_lib.grading.report import Report, check

Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]
NAMES = ("gradient of q", "gradient of k", "gradient of v")
CASES = [  # rows, keys, keys of a tile
    (32, 48, 16),
    (30, 50, 16),
    (20, 8, 32),
    (6, 5, 1),
    (1, 1, 4),
]


@check
def check_15_3(report: Report, backward: Backward) -> None:
    torch.manual_seed(report.seed())
    for rows, keys, tile in CASES:
        with report.case(f"{rows} × {keys}, tiles of {tile} keys"):
            q, k, v = (torch.randn(3, length, 16) for length in (rows, keys, keys))
            _try(report, backward, q, k, v, tile)
    with report.case("scores of up to several hundreds"):
        q, k = ((8 * torch.randn(3, length, 16)).round() for length in (30, 50))  # exact in float32, too
        _try(report, backward, q, k, torch.randn(3, 50, 16), 16, explain=False)
    with report.case("64 × 1,024, tiles of 32 keys"):
        _count(report, backward, *(torch.randn(2, length, 16) for length in (64, 1024, 1024)), tile=32)


def _given(q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """What backward is given besides the tile, and the exact gradients."""
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    output, logsumexp = exact(*leaves)
    gradient = torch.randn(output.shape)
    want = torch.autograd.grad(output, leaves, gradient.double())
    return (q, k, v, output.detach().float(), logsumexp.detach().float(), gradient), list(want)


def _try(
    report: Report, backward: Backward, q: Tensor, k: Tensor, v: Tensor, tile: int, explain: bool = True
) -> None:
    given, want = _given(q, k, v)
    copies = [t.clone() for t in given]
    got = backward(*copies, tile)
    _compare(report, got, want, (*given, tile), explain)
    same = all(one.equal(other) for one, other in zip(given, copies, strict=True))
    report.true(
        same,
        "all tensors given are as they were",
        "a tensor that was given has other values",
        task="The six tensors stay as they are.",
    )


def _compare(report: Report, got: object, want: list[Tensor], given: tuple, explain: bool) -> None:
    if not isinstance(got, tuple | list) or len(got) != 3:
        report.fail(
            f"the result is {type(got).__name__}, not three tensors", task="Return the three gradients"
        )
    for i, name in enumerate(NAMES):
        finite = not isinstance(got[i], Tensor) or bool(got[i].isfinite().all())
        report.close(
            name,
            got[i],
            want[i],
            tolerance=1e-4,
            mistakes=MISTAKES[name] if explain else None,
            given=given,
            task="Return the three gradients of the loss, by `q`, by `k` and by `v`",
            likely=None if explain or finite else "exp is taken of scores before the logsumexp is subtracted",
        )


def _count(report: Report, backward: Backward, q: Tensor, k: Tensor, v: Tensor, tile: int) -> None:
    given, want = _given(q, k, v)
    flops = FlopCounterMode(display=False)
    with flops, Alive(*given) as alive:
        got = backward(*given, tile)
    _compare(report, got, want, (*given, tile), explain=False)
    heads, rows, size = q.shape
    results, product = sum(t.nbytes for t in (q, k, v)), 2 * heads * rows * k.shape[1] * size
    limit = 2 * results + 6 * 4 * heads * (rows * tile + rows * size + tile * size)
    whole = 4 * heads * rows * k.shape[1]
    report.at_most(
        "bytes alive at once",
        alive.most,
        limit,
        mistakes={"when all scores are there at once": alive.most if alive.most >= whole + results else None},
        task="besides the three gradients, which may be there twice, at most six times the bytes of one tile",
    )
    report.at_most(
        "FLOPs of matrix products",
        flops.get_total_flops(),
        5 * product + 2 * heads * rows * size,
        mistakes={
            "when one of the five products is computed twice": 6 * product,
            "when two more products are computed than are needed": 7 * product,
        },
        task="Five matrix products for each tile are enough",
    )


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    gradient: Tensor,
    tile: int,
    *,
    scale: bool = True,
    scale_of_k: bool = True,
    weighted: str = "difference",
    both_scales: bool = True,
    delta: str = "whole",
    again: bool = False,
    plain: bool = False,
    whole_tiles: bool = False,
    last: bool = False,
    v_of: str = "gradient",
) -> tuple[Tensor, ...]:
    """The gradients tile by tile, wrong in one thing."""
    factor, keys = 1 / math.sqrt(q.shape[-1]), k.shape[1]
    sums = {"whole": (gradient * output).sum(-1, keepdim=True), "none": 0.0}
    by_q, by_k, by_v = (torch.zeros_like(t) for t in (q, k, v))
    for start in range(0, keys - keys % tile if whole_tiles else keys, tile):
        part = slice(start, start + tile)
        scores = q @ k[:, part].transpose(-1, -2) * (factor if both_scales else 1.0)
        p = scores.softmax(-1) if again else (scores if plain else scores - logsumexp[..., None]).exp()
        dp = gradient @ v[:, part].transpose(-1, -2)
        row_sums = (p * dp).sum(-1, keepdim=True) if delta == "tile" else sums[delta]
        by_s = {"difference": p * (dp - row_sums), "nothing": dp - row_sums, "first": p * dp - row_sums}
        ds = by_s[weighted] * (factor if scale else 1.0)
        by_q = ds @ k[:, part] if last else by_q + ds @ k[:, part]
        by_k[:, part] = ds.transpose(-1, -2) @ q / (1.0 if scale_of_k else factor)
        by_v[:, part] = p.transpose(-1, -2) @ (gradient if v_of == "gradient" else output)
    return by_q, by_k, by_v


WRONG: dict[str, dict] = {
    "when the gradients of q and k are not divided by the root of the size": {"scale": False},
    "when the gradient of k is not divided by the root of the size, and that of q is": {"scale_of_k": False},
    "when the scores that are computed again are not divided by the root of the size": {"both_scales": False},
    "when the gradient of the scores is not multiplied by the softmax": {"weighted": "nothing"},
    "when the softmax multiplies the gradient, and the row sum is subtracted after it": {"weighted": "first"},
    "when no row sum is subtracted": {"delta": "none"},
    "when the row sum is taken over the keys of a tile alone": {"delta": "tile"},
    "when each tile has a softmax of its own": {"again": True},
    "when the logsumexp is not subtracted from the scores": {"plain": True},
    "when a smaller tile of keys at the end is left out": {"whole_tiles": True},
    "when the gradient of q holds the part of the last tile alone": {"last": True},
    "when the output stands in place of its gradient": {"v_of": "output"},
}
MISTAKES = {
    name: {s: lambda *given, o=o, i=i: _backward(*given, **o)[i] for s, o in WRONG.items()}
    for i, name in enumerate(NAMES)
}
