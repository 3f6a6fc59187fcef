"""02.5: the sizes that follow from a configuration, by formulas that need no PyTorch."""

import random

from course_checks.counted import Operations

from course_lib.grading.judge import Fact, record
from course_lib.grading.material import material

FACTS = {
    "parameters": Fact("the parameters of the model", "the number of parameters of the whole model, each…"),
    "cache": Fact("the bytes that one token adds to the cache, {}", "the bytes that the keys and values of…"),
    "tokens": Fact(
        "the tokens that fit where beside the weights there is room for {}",
        "how many tokens' keys and values fit into `memory` bytes beside the weights, which also have `itemsize` "
        "bytes for a number. It is 0 where the weights alone do not fit",
    ),
    "same": Fact("what is given"),
    "calls": Fact("calls of PyTorch", "No function of PyTorch is called.", most=0),
}

Case = record("name config")


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
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
    return [Case(name, drawn(draw) | kind) for name, kind in kinds.items()]


def drawn(draw: random.Random) -> dict:
    kv_heads = draw.randint(1, 3)
    heads, part = kv_heads * draw.randint(2, 4), 2 * draw.randint(2, 5)
    return {
        "vocab": draw.randint(50, 900), "hidden": heads * part, "layers": draw.randint(2, 5), "heads": heads,
        "kv_heads": kv_heads, "head_size": part + 2 * draw.randint(1, 3),  # not hidden / heads
        "inner": draw.randint(20, 200), "gated": True, "qkv_bias": False, "norm": "rms", "parallel": False,
        "tied": False,
    }  # fmt: skip


def observe(answers, case: Case) -> dict:
    parameters, cache_bytes, most_tokens = answers
    right_parameters, right_bytes, _ = material("02.5").solution  # memory is to be full to the last byte
    weights, each = 4 * right_parameters(case.config), right_bytes(case.config, 4)
    rooms = {"10 tokens": 10 * each, "10 tokens but for a byte": 10 * each - 1, "half a token": each // 2}
    config = dict(case.config)
    with Operations() as calls:
        found = {
            "parameters": parameters(config),
            "cache": {f"{size} bytes a number": cache_bytes(config, size) for size in (4, 2)},
            "tokens": {name: most_tokens(config, weights + room, 4) for name, room in rooms.items()},
        }
        found["tokens"]["only half of them"] = most_tokens(config, weights // 2, 4)
    changed = "" if config == case.config else "`config` has been changed in place"
    return found | {"same": changed, "calls": calls.count}
