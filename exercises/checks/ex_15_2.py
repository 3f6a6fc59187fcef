"""15.2: attention tile by tile; the bytes that are alive are counted."""

import torch
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.alive import Alive

TWO = "Return two tensors, which are the output, softmax…"
DTYPES = "The output has the dtype of `q`, and the logsumexp is in float32."
FACTS = {
    "pair": Fact("the result", TWO),
    "dtypes": Fact("the dtypes", DTYPES),
    "output": Fact("the output", TWO, tolerance=1e-4),
    "halved": Fact("the output", "In bf16, convert a tile to float32 before…", tolerance=4e-3),
    "logsumexp": Fact("the logsumexp", TWO, tolerance=1e-4),  # in float32, whatever q is in
    "kept": Fact("inputs", "`q`, `k` and `v` stay as they are."),
    "bytes": Fact(
        "bytes alive at once beyond the result twice and six times three tiles", "Alive at once are…", most=0
    ),
}

large = "Scores can be several hundreds, so `exp` of them overflows."
low = "All scores of a row can be minus several hundreds."
# halved: q, k and v in bf16; scores: "large", "low" (all of a row) or "growing" (sums of values of one sign)
Case = record(
    "rows keys tile_rows tile_keys",
    lambda c: c.title or f"{c.rows} × {c.keys}, tiles of {c.tile_rows} × {c.tile_keys}",
    title="",
    task=None,
    heads=2,
    halved=False,
    scores="",
)
CASES = [
    Case(48, 64, 16, 16),
    Case(50, 70, 16, 32),
    Case(70, 50, 32, 16),
    Case(1, 1, 16, 16),
    Case(5, 7, 1, 1),
    Case(50, 70, 16, 32, "scores of up to several hundreds", large, scores="large"),
    Case(50, 70, 16, 32, "rows with all scores at minus hundreds", low, scores="low"),
    Case(4, 300, 4, 1, "bf16, 300 keys one by one", halved=True, scores="growing"),
    Case(50, 70, 16, 32, "bf16, scores of up to several hundreds", halved=True, scores="large"),
    Case(256, 1024, 32, 32, heads=1),
]


def inputs(case: Case) -> list[Tensor]:
    draw = torch.Generator().manual_seed(case.seed)
    size, spread = (8, 5) if case.halved else (16, 12)  # of a head, whose root 4 is exact in bf16; of scores
    q, k, v = (torch.randn(case.heads, n, size, generator=draw) for n in (case.rows, case.keys, case.keys))
    if case.scores in ("large", "low"):
        q, k = ((spread * t).round() for t in (q, k))  # whole: scores are exact in float32, too
    if case.scores == "low":
        q, k = q.abs() + 9, -k.abs() - 9
    if case.scores == "growing":  # until one more value is less than the last bit of a sum in bf16
        q, v = q / 8, v.abs()
    return [t.bfloat16() if case.halved else t for t in (q, k, v)]


def observe(attention, case: Case) -> dict:
    given, before = inputs(case), inputs(case)
    with Alive(*given) as alive:
        result = attention(*given, case.tile_rows, case.tile_keys)
    if not isinstance(result, tuple | list) or [type(one) for one in result] != [Tensor, Tensor]:
        return {"pair": f"the result is {type(result).__name__}, not two tensors"}
    output, logsumexp = result
    kept = all(map(torch.equal, given, before))
    tiles = case.tile_rows * case.tile_keys + 16 * (case.tile_rows + case.tile_keys)
    room = 2 * (output.nbytes + logsumexp.nbytes) + 6 * 4 * case.heads * tiles
    return {
        "dtypes": [str(output.dtype), str(logsumexp.dtype)],
        "halved" if case.halved else "output": output,
        "logsumexp": logsumexp,
        "kept": "" if kept else "q, k or v has other values",
        "bytes": max(0, alive.most - room) if case.keys == 1024 else 0,
    }
