"""09.4: a rank's heads of a fused matrix; attention from its rows is that of these heads."""

import torch
from course_checks.on_ranks import count
from course_checks.tensor_parallel import kind
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from course_lib.grading.judge import Fact, record

RANK = "Rank r has the r-th of `ranks` equal shares of the query heads"
FACTS = {
    "rows": Fact("the result", "Return this rank's rows as one tensor, in the same order", each="rank"),
    "kept": Fact("the weight", "Return this rank's rows as one tensor"),
    "attention": Fact("attention of this rank's heads", RANK, tolerance=1e-4, each="rank"),
    "bias": Fact("of a bias", "`weight` may also be a bias, with one dimension.", each="rank"),
    "more": Fact("rows of a rank beyond those it needs", "No rank has more rows than it needs.", most=0, beyond=True),
}  # fmt: skip
HIDDEN = 5

# size: of a head
Case = record(
    "ranks heads kv_heads size",
    lambda c: f"{count(c.ranks, 'rank')}, {c.heads} query heads, {count(c.kv_heads, 'KV head')}",
)
PLAIN = [(2, 4, 4, 4), (2, 8, 4, 2), (3, 6, 3, 4), (4, 8, 2, 2), (6, 12, 2, 2), (4, 4, 1, 4), (1, 4, 2, 2)]
CASES = [Case(*case) for case in PLAIN]


def attention_of(weight: Tensor, x: Tensor, heads: int, size: int) -> Tensor:
    """(heads, tokens, size) from rows q, k, v; neighbouring query heads share a head of keys and values."""
    kv_rows = (len(weight) - heads * size) // 2
    q, k, v = (
        (x @ part.T).unflatten(1, (-1, size)).transpose(0, 1)
        for part in weight.split([heads * size, kv_rows, kv_rows])
    )
    return scaled_dot_product_attention(q[None], k[None], v[None], enable_gqa=True)[0]


def problem(part, heads: int, size: int) -> str:
    """Why attention cannot be computed from these rows."""
    if not isinstance(part, Tensor) or part.dim() != 2 or part.shape[1] != HIDDEN:
        return f"the result is {kind(part)}, and a row of the weight has {HIDDEN} numbers"
    kv_heads, left = divmod(len(part) // size - heads, 2)
    if len(part) % size or left or kv_heads < 1:
        many = f"{heads} query heads with an equal number of heads of keys and of values"
        return f"{len(part)} rows are not {many}, each of {size} rows"
    return f"{heads} query heads cannot share {kv_heads} KV heads evenly" if heads % kv_heads else ""


def observe(split_qkv, case: Case) -> dict:
    draw, own = torch.Generator().manual_seed(case.seed), case.heads // case.ranks
    weight = torch.randn((case.heads + 2 * case.kv_heads) * case.size, HIDDEN, generator=draw)
    x = torch.randn(6, HIDDEN, generator=draw)
    bias = weight[:, 0].clone()

    def parts(given: Tensor) -> list:
        return [split_qkv(given, rank, case.ranks, case.heads, case.kv_heads) for rank in range(case.ranks)]

    before, found = weight.clone(), parts(weight)
    rows = [problem(part, own, case.size) for part in found]
    if any(rows):
        return {"rows": rows}
    of_bias = [
        "" if isinstance(b, Tensor) and b.equal(part[:, 0]) else "of a bias other rows are returned than of a weight"
        for b, part in zip(parts(bias), found, strict=True)
    ]  # fmt: skip
    return {
        "rows": rows,
        "kept": "" if weight.equal(before) else "`weight` has been changed in place",
        "attention": [attention_of(part, x, own, case.size) for part in found],
        "bias": of_bias,
        "more": max(map(len, found)),
    }
