"""16.2: attention over a block table."""

import torch
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.alive import Alive

SIZE = 16
FACTS = {
    "shape": Fact("the shape of the result", "The result has the shape and the dtype of `q`."),
    "kept": Fact("inputs", "`q`, `keys` and `values` stay as they are."),
    "result": Fact("the result", tolerance=1e-4),
    "halved": Fact("the result", "With numbers of 16 bits, compute in 32 bits.", tolerance=5e-3),
    "dtype": Fact("the dtype of the result", "The result has the shape and the dtype of `q`."),
    "bytes": Fact("bytes alive at once beyond 6 · heads · block_size · size numbers", "However…", most=0),
}

# nan: in slots that are not the sequence's; scale: of the keys, negative: no score is above 0
Case = record(
    "name length block_size", heads=4, kv_heads=4, nan=False, scale=1.0, dtype=torch.float32, task=None
)
CASES = [
    Case("11 tokens, blocks of 4", 11, 4),
    Case("one token", 1, 4),
    Case("exactly full: 12 tokens, blocks of 4", 12, 4),
    Case("blocks of 1", 5, 1),
    Case("one block of 16", 7, 16),
    Case("6 heads share 2 heads of keys and values", 11, 4, 6, 2),
    Case("one head of keys and values for all", 9, 4, 4, 1),
    Case("large scores", 23, 4, scale=300.0, task="Scores may be large, several hundreds."),
    Case("large scores, all below 0", 23, 4, scale=-300.0, task="Scores may be large, several hundreds."),
    Case("unused slots hold NaN", 11, 4, nan=True,
         task="Slots that the sequence does not use may hold anything, NaN too."),
    Case("160 tokens, blocks of 16", 160, 16, 8, 2),
    Case("1,600 tokens, blocks of 16", 1600, 16, 8, 2),
    Case("numbers of 16 bits", 61, 8, 16, 16, scale=5.0, dtype=torch.bfloat16),
]  # fmt: skip


def inputs(case: Case) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    draw = torch.Generator().manual_seed(case.seed)
    needed = -(-case.length // case.block_size)
    table = torch.randperm(needed + 4, generator=draw)[:needed].tolist()
    if needed > 1 and table == sorted(table):
        table.reverse()
    keys, values = torch.randn(2, needed + 4, case.block_size, case.kv_heads, SIZE, generator=draw)
    keys *= case.scale
    if case.nan:
        used = torch.zeros(keys.shape[:2], dtype=torch.bool)
        for i in range(case.length):
            used[table[i // case.block_size], i % case.block_size] = True
        keys[~used], values[~used] = torch.nan, torch.nan
    q = torch.randn(case.heads, SIZE, generator=draw)
    if case.scale < 0:
        q, keys = q.abs(), -keys.abs()
    return q.to(case.dtype), keys.to(case.dtype), values.to(case.dtype), table


def observe(attend_blocks, case: Case) -> dict:
    *given, table = inputs(case)
    before = [x.clone() for x in given]
    with Alive(*given) as alive:
        got = attend_blocks(*given, list(table), case.length)
    if not isinstance(got, Tensor) or got.shape != given[0].shape:
        return {"shape": tuple(got.shape) if isinstance(got, Tensor) else type(got).__name__}
    kept = all(a.allclose(b, rtol=0, atol=0, equal_nan=True) for a, b in zip(given, before, strict=True))
    room = 6 * case.heads * case.block_size * SIZE * 4
    return {
        "shape": tuple(got.shape),
        "kept": "" if kept else "q, keys or values have changed",
        "halved" if case.dtype == torch.bfloat16 else "result": got.detach(),
        "dtype": str(got.dtype),
        "bytes": max(0, alive.most - room) if case.length >= 160 else 0,
    }
