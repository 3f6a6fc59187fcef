"""More checks of chapter 02: a mask of prefixes and padding, and the sizes that follow from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.checks import anatomy_masks as masks
from course_lib.grading.checks import anatomy_sizes as sizes
from course_lib.grading.report import Report, check

# ---- 02.4 -------------------------------------------------------------------------------------------------


@check
def check_02_4(report: Report, mask_of: Callable[..., Tensor]) -> None:
    cases = {  # prefixes, lengths, seq
        "no padding, a prefix": ([3], [6], 6),
        "padding, a prefix": ([2], [4], 6),
        "three sequences": ([2, 0, 4], [5, 3, 4], 6),
        "no prefix": ([0, 0], [5, 2], 5),
        "all is prefix": ([4, 2], [4, 2], 5),
        "a sequence without tokens": ([0, 2], [0, 3], 4),
        "one token": ([1], [1], 1),
        "a prefix of one": ([1], [3], 4),
    }
    for name, (prefixes, lengths, seq) in cases.items():
        with report.case(name):
            given = (torch.tensor(prefixes), torch.tensor(lengths), seq)
            mine = given[0].clone(), given[1].clone()
            found = mask_of(*mine, seq)
            report.true(
                isinstance(found, Tensor) and found.dtype == torch.bool,
                "a tensor of booleans",
                f"the result is {found.dtype if isinstance(found, Tensor) else type(found).__name__}",
                task="a tensor of booleans of the shape (batch, seq, seq)",
            )
            report.equal(
                "who sees whom",
                found,
                masks.masked(*given),
                mistakes=masks.MASKS,
                given=given,
                task="A token sees the tokens of its text up to its own place, and a token of the prefix also sees "
                "the whole prefix. No token sees padding. A place of padding sees itself and nothing else",
            )
            unchanged = all(a.equal(b) for a, b in zip(mine, given, strict=False))
            report.true(
                unchanged, "the inputs are as they were", "`prefixes` or `lengths` has been changed in place"
            )
    with report.case("1 and 40 sequences"):
        counts = []
        for batch in (1, 40):
            prefixes, lengths = torch.full((batch,), 2), torch.full((batch,), 5)
            with masks.Operations() as seen:
                mask_of(prefixes, lengths, 7)
            counts.append(seen.count)
        task = "The number of PyTorch operations does not depend on the number of sequences"
        report.at_most(
            "operations for 40 sequences, beyond those for one", counts[1] - counts[0], 0, task=task
        )


# ---- 02.5 -------------------------------------------------------------------------------------------------


@check
def check_02_5(
    report: Report,
    parameters: Callable[[Mapping[str, Any]], int],
    cache_bytes: Callable[[Mapping[str, Any], int], int],
    most_tokens: Callable[[Mapping[str, Any], int, int], int],
) -> None:
    kinds = {
        "LLaMA's kind": {},
        "ChatGLM's kind": {"qkv_bias": True},
        "Falcon's kind": {"gated": False, "norm": "layer", "parallel": True, "tied": True, "kv_heads": 1},
        "GPT's kind": {"gated": False, "norm": "layer", "qkv_bias": True, "tied": True},
        "one layer, one head": {"layers": 1, "heads": 1, "kv_heads": 1},
        "Llama 2 70B": {
            "vocab": 32_000, "hidden": 8192, "layers": 80, "heads": 64, "kv_heads": 8, "head_size": 128,
            "inner": 28_672,
        },
    }  # fmt: skip
    for name, changes in kinds.items():
        with report.case(name):
            config = sizes.drawn(report.seed(), **changes)
            given = dict(config)
            with sizes.Made() as made:
                found = parameters(config)
                bytes_of_token = cache_bytes(config, 4)
            report.equal(
                "the parameters of the model",
                found,
                sum(p.numel() for p in sizes.built(given).parameters()),
                mistakes=sizes.PARAMETERS,
                given=(given,),
                task="the number of parameters of the whole model, each counted once",
            )
            report.equal(
                "the bytes that one token adds to the cache",
                bytes_of_token,
                sizes.cached(given, 4),
                mistakes=sizes.CACHE,
                given=(given, 4),
                task="the bytes that the keys and values of one token take in all layers",
            )
            report.equal(
                "the same in 16-bit numbers",
                cache_bytes(config, 2),
                sizes.cached(given, 2),
                mistakes=sizes.CACHE,
                given=(given, 2),
            )
            weights, each = 2 * sizes.counted(given), sizes.cached(given, 2)
            for memory in (weights + 10 * each, weights + 10 * each - 1, weights + each // 2, weights // 2):
                report.equal(
                    "the tokens that fit",
                    most_tokens(config, memory, 2),
                    sizes.longest(given, memory, 2),
                    mistakes=sizes.LONGEST,
                    given=(given, memory, 2),
                    task="how many tokens' keys and values fit into `memory` bytes beside the weights, which also "
                    "have `itemsize` bytes for a number. It is 0 where the weights alone do not fit",
                )
            report.true(
                config == given, "the configuration is as it was", "`config` has been changed in place"
            )
            task = "No function of PyTorch is called"
            report.at_most("calls of PyTorch", made.count, 0, task=task)
