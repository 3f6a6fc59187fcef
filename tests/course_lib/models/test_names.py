"""A pattern means the same modules in recomputation, FSDP, tensor parallelism and fine-tuning."""

import pytest
from torch import nn

from course_lib.data_parallel.fsdp_units import find_units
from course_lib.finetuning.lora_apply import apply_lora
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.names import find_modules, replace_module
from course_lib.one_device.recompute import apply_recompute
from course_lib.tensor_parallel.apply import _styles

CALLERS = {
    "recomputation": lambda model, pattern: apply_recompute(model, [pattern]),
    "FSDP": lambda model, pattern: find_units(model, [pattern]),
    "tensor parallelism": lambda model, pattern: _styles(model, {pattern: "sequence"}),
    "LoRA": lambda model, pattern: apply_lora(model, [pattern]),
    "fine-tuning": find_modules,
}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("query", ["blocks.0.attention.query", "blocks.1.attention.query"]),
        ("mlp.*n", ["blocks.0.mlp.down", "blocks.1.mlp.down"]),
        ("blocks.1.*.output", ["blocks.1.attention.output"]),
        ("head", ["head"]),  # a whole name: the end of no other name is meant
        ("blocks.*", ["blocks.0", "blocks.1"]),  # and nothing inside them
        ("attention", ["blocks.0.attention", "blocks.1.attention"]),
    ],
)
def test_a_pattern_means_the_same_to_all(caller, pattern, expected):
    model = GPT(GPTConfig.tiny(num_layers=2))
    model.blocks[0].head = nn.Linear(128, 128)
    if caller == "LoRA" and pattern in ("blocks.*", "attention"):
        with pytest.raises(ValueError, match=rf"{expected[0]} is a \w+; LoRA is for"):
            CALLERS[caller](model, pattern)
    else:
        assert list(CALLERS[caller](model, pattern)) == expected


@pytest.mark.parametrize("caller", CALLERS)
def test_a_name_that_no_module_has(caller):
    with pytest.raises(ValueError, match=r"GPT .*'?q_proj.* embedding, "):
        CALLERS[caller](GPT(GPTConfig.tiny()), "q_proj")


def test_a_module_is_replaced_under_all_its_names():
    shared = nn.Linear(3, 3)
    twice = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})
    around = nn.Sequential(shared)
    replace_module(twice, "a", around)
    assert twice["a"] is twice["b"][0] is around
    assert around[0] is shared
