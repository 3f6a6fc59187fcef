"""02.6: attention that reads a text in several calls, with three faults, and the bytes of its cache."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from course_lib.grading.judge import Fact, record
from course_lib.models.llama import LlamaAttention, LlamaConfig

IN_CACHE = "Everything that is remembered between calls is in `cache`."
FACTS = {
    "result": Fact("the result of one call", "as if all tokens had been read in one call", tolerance=1e-4),
    "turns": Fact("each text's result, when two are read in turns", IN_CACHE, tolerance=1e-4),
    "same": Fact("what is given"),
    "bytes": Fact("bytes in the cache beyond a key and a value of each KV head for each token", "The cache…", most=0),
}  # fmt: skip


def faulty_step(attention: LlamaAttention, x: Tensor, cache: dict) -> Tensor:
    q, k, v = (
        project(x).unflatten(-1, (-1, attention.head_size)).transpose(1, 2)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )  # (batch, heads or kv_heads, new, size)
    q, k = attention.rotary(q, k)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    if cache:
        k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
    cache["k"], cache["v"] = k, v
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
    return attention.o_proj(attended.transpose(1, 2).flatten(2))


# parts: tokens of each call
Case = record("name parts", batch=1, heads=4, kv_heads=2, size=4)
CASES = [
    Case("all tokens in one call", (6,), batch=2),
    Case("a prompt, then one token at a time", (4, 1, 1, 1)),
    Case("several tokens in each call", (3, 4, 2), 2, 6, 3, 2),
    Case("one token at a time from the first on", (1,) * 5, 2, 4, 1),
    Case("as many KV heads as heads", (2, 1, 3), 1, 3, 3),
]


def inputs(case: Case) -> tuple[LlamaAttention, Tensor]:
    draw, width = torch.Generator().manual_seed(case.seed), 3 * case.heads * case.size
    heads = {"num_attention_heads": case.heads, "num_key_value_heads": case.kv_heads, "head_dim": case.size}
    attention = LlamaAttention(LlamaConfig.tiny(hidden_size=width, rope_theta=100.0, **heads))
    for weight in attention.requires_grad_(False).parameters():
        weight.copy_(torch.randn(weight.shape, generator=draw) / weight.shape[1] ** 0.5)
    return attention, torch.randn(case.batch, sum(case.parts), width, generator=draw)


def observe(step, case: Case) -> dict:
    attention, x = inputs(case)
    texts, caches = (x.clone(), x.flip(1)), ({}, {}, {})
    parts = [text.split(case.parts, 1) for text in texts]
    with torch.no_grad():
        alone = torch.cat([step(attention, part, caches[2]) for part in parts[0]], 1)
        turns = [
            torch.cat([step(attention, part, cache) for part, cache in zip(both, caches, strict=False)])
            for both in zip(*parts, strict=True)
        ]
    held = {t.untyped_storage() for t in tree_leaves(caches[2]) if isinstance(t, Tensor)}
    room = 2 * 4 * case.batch * case.kv_heads * case.size * sum(case.parts)
    return {
        "result": alone,
        "turns": torch.cat(turns, 1),
        "same": "" if texts[0].equal(x) else "`x` has been changed in place",
        "bytes": max(0, sum(storage.nbytes() for storage in held) - room),
    }


def beside_one_call(step, parts: tuple[int, ...] = (5, 1, 3)) -> list[list[str]]:
    """A row of a table for each call: whether it gives what one call with all tokens gives."""
    (attention, x), cache = inputs(Case("", parts)), {}
    pairs = zip(x.split(parts, 1), attention(x).split(parts, 1), strict=True)
    same = [torch.allclose(step(attention, part, cache), whole, atol=1e-4) for part, whole in pairs]
    names = ["5 tokens of the prompt", "1 token", "3 tokens"]
    rows = [[n, "the same" if ok else "another one"] for n, ok in zip(names, same, strict=True)]
    numbers = sum(t.numel() for t in cache.values()) // sum(parts)
    return [*rows, ["numbers in the cache for a token", f"{numbers}, instead of {2 * 2 * 4}"]]
