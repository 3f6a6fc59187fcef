"""02.3: fewer heads of keys and values from trained ones, and attention with them that copies neither."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.grading.judge import Fact, record

FACTS = {
    "weight": Fact("the pooled weight", "the mean of `heads / kv_heads` neighbouring heads", tolerance=1e-5),
    "bias": Fact("a pooled bias", "`weight` may also be a bias, with one dimension.", tolerance=1e-5),
    "attention": Fact(
        "the result of attention",
        "Query head i uses the KV head `i // (heads // kv_heads)`. The last query stands at the place of the last "
        "key, and each query sees the keys up to its own place. Scores are divided by the root of `size`",
        tolerance=1e-4,
    ),
    "same": Fact("what is given"),
    "largest": Fact("numbers of a tensor beyond the scores or the result", "In `attend` no tensor…", most=0),
}

pooled = [(8, 2, 4), (6, 3, 2), (4, 1, 3), (4, 4, 2), (12, 3, 1)]
# A weight is pooled where ``tokens`` is empty; else there are queries of so many of so many tokens
Case = record("name heads kv_heads size", tokens=(), batch=2, counted=False)
CASES = [
    *(Case(f"{heads} heads become {few}", heads, few, size) for heads, few, size in pooled),
    Case("2 KV heads, 6 tokens", 4, 2, 3, (6, 6)),
    Case("3 KV heads, the last 2 of 7 tokens", 6, 3, 4, (2, 7), batch=1),
    Case("1 KV head, one new token", 4, 1, 2, (1, 9), batch=3),
    Case("as many KV heads as heads", 3, 3, 2, (4, 5)),
    Case("one token", 4, 2, 4, (1, 1), batch=1),
    Case("a new token after 200, 16 heads of 32 numbers, 2 KV heads", 16, 2, 32, (1, 201), counted=True),
]


class LargestTensor(TorchDispatchMode):
    """The most numbers of a tensor that is written while this is on; views of the inputs are none."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in given:
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def observe(answers, case: Case) -> dict:
    pool, attend = answers
    draw = torch.Generator().manual_seed(case.seed)
    heads, kv_heads, size = case.heads, case.kv_heads, case.size
    if not case.tokens:
        weight, bias = torch.randn(heads * size, 5, generator=draw), torch.randn(heads * size, generator=draw)
        given = weight.clone()
        found = {"weight": pool(given, heads, kv_heads), "bias": pool(bias, heads, kv_heads)}
        return found | {"same": "" if given.equal(weight) else "`weight` has been changed in place"}
    new, tokens = case.tokens
    shapes = (heads, new, size), (kv_heads, tokens, size), (kv_heads, tokens, size)
    tensors = [torch.randn(case.batch, *shape, generator=draw) for shape in shapes]
    given = [t.clone() for t in tensors]
    with LargestTensor() as seen:
        attention = attend(*given)
    return {
        "attention": attention,
        "same": "" if all(map(torch.equal, given, tensors)) else "`q`, `k` or `v` has been changed in place",
        "largest": max(0, seen.numbers - case.batch * heads * new * max(tokens, size)) if case.counted else 0,
    }
