"""Exercise 02.6: attention that reads a text in several calls, with three faults, and what each of them gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from course_lib.grading.report import Report, check
from course_lib.models.llama import LlamaAttention, LlamaConfig

Step = Callable[[LlamaAttention, Tensor, dict], Tensor]


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


def _stepped(attention: LlamaAttention, x: Tensor, cache: dict, mistake: str) -> Tensor:
    """One call as it should be, or with one of the mistakes."""
    past = cache["k"].shape[2] if "k" in cache else 0
    new = x.shape[1]
    q, k, v = (
        project(x).unflatten(-1, (-1, attention.head_size)).transpose(1, 2)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    start = {"positions": 0, "one more": past + (past > 0)}.get(mistake, past)
    positions = torch.arange(start, start + new)
    if mistake == "one place":
        positions = positions[:1].expand(new)
    q, k = attention.rotary(q, k, positions=positions)
    if past:
        k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
    cache["k"], cache["v"] = k, v
    visible = torch.ones(new, past + new, dtype=torch.bool).tril(0 if mistake == "mask" and new > 1 else past)
    if mistake == "no mask" and past:
        visible = torch.ones_like(visible)
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
    return attention.o_proj(attended.transpose(1, 2).flatten(2))


def read(
    step: Step, attention: LlamaAttention, x: Tensor, parts: Sequence[int], cache: dict | None = None
) -> Tensor:
    """The results of several calls behind each other: ``(batch, seq, hidden)``."""
    cache = {} if cache is None else cache
    with torch.no_grad():
        return torch.cat([step(attention, part, cache) for part in x.split(list(parts), 1)], 1)


MISTAKES: dict[str, Callable[..., Tensor]] = {
    f"when {words}": partial(read, partial(_stepped, mistake=mistake))
    for mistake, words in {
        "positions": "positions begin at 0 in every call",
        "one more": "the position of the first new token is one too large",
        "one place": "all tokens of one call have the same position",
        "mask": "in a call with several tokens the first of them sees only the first token of the text",
        "no mask": "tokens of one call see the tokens of this call that come after them",
    }.items()
}


def attention_of(seed: int, heads: int = 4, kv_heads: int = 2, size: int = 4) -> LlamaAttention:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        attention = LlamaAttention(
            LlamaConfig.tiny(
                hidden_size=2 * heads * size,
                num_attention_heads=heads,
                num_key_value_heads=kv_heads,
                head_dim=size,
                rope_theta=100.0,
            )
        )
    for weight in attention.parameters():
        weight.data = torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5
    return attention.requires_grad_(False)


def measured_against_one_call(step: Step) -> list[list[str]]:
    """Rows of a table: calls of 5, 1 and 3 tokens, beside one call of all 9."""
    attention = attention_of(0)
    x = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(1))
    cache: dict = {}
    whole, found = attention(x), read(step, attention, x, (5, 1, 3), cache)
    rows = []
    for name, first, last in (("5 tokens of the prompt", 0, 5), ("1 token", 5, 6), ("3 tokens", 6, 9)):
        same = torch.allclose(found[:, first:last], whole[:, first:last], atol=1e-4)
        rows.append([name, "the same" if same else "another one"])
    numbers = sum(t.numel() for t in cache.values())
    rows.append(["numbers in the cache for a token", f"{numbers // 9}, instead of {2 * 2 * 4}"])
    return rows


def _bytes(cache: Any) -> int:
    """Of all storages that the cache holds, each once."""
    storages = {
        t.untyped_storage()._cdata: t.untyped_storage().nbytes()
        for t in tree_leaves(cache)
        if isinstance(t, Tensor)
    }
    return sum(storages.values())


@check
def check_02_6(report: Report, mended_step: Step) -> None:
    cases = {  # batch, heads, KV heads, size, tokens of each call
        "all tokens in one call": (2, 4, 2, 4, (6,)),
        "a prompt, then one token at a time": (1, 4, 2, 4, (4, 1, 1, 1)),
        "several tokens in each call": (2, 6, 3, 2, (3, 4, 2)),
        "one token at a time from the first on": (2, 4, 1, 4, (1,) * 5),
        "as many KV heads as heads": (1, 3, 3, 4, (2, 1, 3)),
    }
    for name, (batch, heads, kv_heads, size, parts) in cases.items():
        with report.case(name):
            attention = attention_of(report.seed(), heads, kv_heads, size)
            draws = torch.Generator().manual_seed(report.seed())
            x = torch.randn(batch, sum(parts), 2 * heads * size, generator=draws)
            given = (attention, x.clone(), parts)
            cache: dict = {}
            found = read(mended_step, attention, x, parts, cache)
            report.close(
                "the result of one call with all tokens",
                found,
                attention(given[1]),
                tolerance=1e-4,
                mistakes=MISTAKES,
                given=given,
                task="as if all tokens had been read in one call",
            )
            report.true(x.equal(given[1]), "the input is as it was", "`x` has been changed in place")
            limit = 2 * batch * kv_heads * size * sum(parts) * 4
            task = "The cache holds one key and one value of each KV head for each token, and nothing else."
            report.at_most("bytes in the cache", _bytes(cache), limit, task=task)
    with report.case("two texts in turns"):
        attention = attention_of(report.seed())
        draws = torch.Generator().manual_seed(report.seed())
        texts = torch.randn(2, 1, 6, 32, generator=draws)
        whole = torch.stack([attention(text) for text in texts])
        alone = torch.stack([read(mended_step, attention, text, (2, 2, 2)) for text in texts])
        remembers = alone.shape == whole.shape and torch.allclose(alone, whole, atol=1e-3)
        caches: tuple[dict, dict] = ({}, {})
        with torch.no_grad():
            parts_of = [
                [
                    mended_step(attention, text[:, i : i + 2], cache)
                    for text, cache in zip(texts, caches, strict=True)
                ]
                for i in (0, 2, 4)
            ]
        found = torch.stack([torch.cat(parts, 1) for parts in zip(*parts_of, strict=True)])
        report.close(
            "each text's own result",
            found,
            whole,
            tolerance=1e-4,
            task="Everything that is remembered between calls is in `cache`." if remembers else None,
        )
