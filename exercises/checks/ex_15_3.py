"""15.3: attention's backward from the logsumexp; bytes and FLOPs are counted."""

import math

import torch
from course_checks.on_ranks import count
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.alive import Alive

THREE = "Return the three gradients of the loss, by `q`, by `k` and by `v`, in this order."
FACTS = {
    "three": Fact("the result", THREE),
    "finite": Fact("the gradients", "No key is hidden, everything is in float32, and scores can be several…"),
    "gradients": Fact("the gradient of {}", THREE, tolerance=1e-4),
    "kept": Fact("inputs", "The six tensors stay as they are."),
    "bytes": Fact("bytes alive at once beyond the gradients twice and six times three tiles", "Alive at once…", most=0),
    "flops": Fact("FLOPs of matrix products beyond five for each tile and the sums over rows", "Five matrix…", most=0),
}  # fmt: skip

# large: scores of several hundreds; counted: bytes and FLOPs
Case = record(
    "rows keys tile",
    lambda c: c.title or f"{c.rows} × {c.keys:,}, tiles of {count(c.tile, 'key')}",
    title="",
    heads=3,
    large=False,
    counted=False,
)
CASES = [
    Case(32, 48, 16),
    Case(30, 50, 16),
    Case(20, 8, 32),
    Case(6, 5, 1),
    Case(1, 1, 4),
    Case(30, 50, 16, "scores of up to several hundreds", large=True),
    Case(64, 1024, 32, heads=2, counted=True),
]


def inputs(case: Case) -> list[Tensor]:
    draw = torch.Generator().manual_seed(case.seed)
    lengths = (case.rows, case.keys, case.keys, case.rows)
    q, k, v, gradient = (torch.randn(case.heads, n, 16, generator=draw) for n in lengths)
    if case.large:
        q, k = (8 * q).round(), (8 * k).round()  # exact in float32
    scores = q.double() @ k.double().mT / math.sqrt(16)
    output = scores.softmax(-1) @ v.double()
    return [q, k, v, output.float(), scores.logsumexp(-1).float(), gradient]


def observe(backward, case: Case) -> dict:
    given, before, flops = inputs(case), inputs(case), FlopCounterMode(display=False)
    with flops, Alive(*given) as alive:
        result = backward(*given, case.tile)
    if not isinstance(result, tuple | list) or [type(one) for one in result] != [Tensor] * 3:
        return {"three": f"the result is {type(result).__name__}, not three tensors"}
    pairs = zip(("q", "k", "v", "output", "logsumexp", "gradient"), given, before, strict=True)
    gradients = dict(zip("qkv", result, strict=True))
    if wild := [name for name, t in gradients.items() if not t.isfinite().all()]:
        return {"finite": f"not all numbers are finite in the gradient of {' and of '.join(wild)}"}
    results, rows = sum(t.nbytes for t in before[:3]), case.heads * case.rows
    tiles = rows * case.tile + rows * 16 + case.heads * case.tile * 16
    enough = 5 * 2 * rows * case.keys * 16 + 2 * rows * 16
    return {
        "gradients": gradients,
        "kept": "\n".join(f"{name} has other values" for name, now, was in pairs if not now.equal(was)),
        "bytes": max(0, alive.most - 2 * results - 6 * 4 * tiles) if case.counted else 0,
        "flops": max(0, flops.get_total_flops() - enough) if case.counted else 0,
    }
