"""The memory calculator: the formulas add up to what the simulator says, and the changes that it offers do fit."""

import itertools
from dataclasses import replace

import pytest

from simulator.explorer import explore_memory
from simulator.explorer.calculator import MemoryQuestion, calculate
from simulator.predict.memory import plan_memory

PLANS = [
    {"dp": dp, "tp": tp, "pp": pp, "zero": zero}
    for dp, tp, pp, zero in itertools.product((1, 4), (1, 2), (1, 4), (0, 1, 2, 3))
]
MORE = [
    {"model": "mixtral-8x7b", "dp": 8, "zero": 2},
    {"model": "mixtral-8x7b", "dp": 2, "tp": 4, "sequence_parallel": True, "zero": 1},
    {"model": "gpt-22b", "pp": 4, "schedule": "zb-v", "microbatches": 8},
    {"model": "gpt-22b", "pp": 4, "schedule": "gpipe", "recompute": "full"},
    {"model": "gpt-22b", "pp": 4, "schedule": "interleaved-1f1b", "recompute": "selective"},
    {"model": "gpt-22b", "tp": 8, "sequence_parallel": True, "precision": "bf16", "gradients": "fp32"},
    {"model": "llama-3-70b", "gpu": "b200", "cp": 4, "sequence": 131072, "attention": "flash"},
]


@pytest.mark.parametrize("values", [*PLANS, *MORE], ids=str)
def test_the_formulas_add_up(values):
    question = MemoryQuestion(**values)
    found, held = calculate(question), plan_memory(question.shape, question.plan, question.hardware)
    assert len(found["ranks"]) == len(held)
    for parts, memory in zip(found["ranks"], held, strict=True):
        assert list(parts) == list(memory.as_dict())
        for name, part in parts.items():
            assert part["bytes"] == getattr(memory, name)
            total = sum(size for _, size in part["terms"])
            assert total == pytest.approx(part["bytes"], rel=1e-9, abs=1e-3 * memory.total / 1e3), name
    assert found["fits"] == (max(memory.occupied for memory in held) <= question.hardware.memory)


def test_a_formula_shows_its_values():
    parts = calculate(MemoryQuestion("llama-3-8b", "h100", dp=8, zero=1))["ranks"][0]
    assert parts["parameters"]["terms"][0][0] == "8.03 billion parameters of this rank × 2 bytes"
    assert (
        parts["optimizer_states"]["terms"][0][0]
        == "8.03 billion parameters of this rank × 12 bytes / 8 ranks that share them"
    )
    assert parts["activations"]["terms"][0][0].startswith("32 layers × 1 microbatch in flight × ")


def test_each_change_that_is_offered_fits():
    question = MemoryQuestion("llama-3-70b", "h100", dp=8, zero=0)
    found = calculate(question)
    assert not found["fits"]
    assert found["verdict"].startswith("It does not fit: the fullest rank needs 1.")
    assert {"zero": 3} not in found["changes"], "even ZeRO 3 leaves too much on 8 ranks"
    assert any("tp" in change for change in found["changes"])
    for change in found["changes"]:
        assert calculate(replace(question, **change))["fits"], change


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"model": "gpt-5"}, "model must be one of "),
        ({"gpu": "abacus"}, "gpu must be one of "),
        ({"tp": 3}, "tp must divide the 32 heads, not 3"),
        ({"pp": 64}, "64 pipeline stages need as many layers; the model has 32"),
        ({"dp": 0}, "dp must be a whole number of at least 1, not 0"),
        ({"sequence": 0.5}, "sequence must be a whole number of at least 1, not 0.5"),
        ({"colour": 1}, "there is nothing called 'colour'"),
    ],
)
def test_what_is_wrong_is_refused_in_a_sentence(wrong, sentence):
    with pytest.raises(ValueError) as error:
        MemoryQuestion.of(MemoryQuestion().as_dict() | wrong)
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize("asked", [{"dp": 2}, {"pp": 4}, {"pp": 4, "schedule": "zb-v"}])
def test_the_still_picture_names_its_bars_as_the_live_view_does(asked):
    view = explore_memory("llama-2-7b", "h100", **asked)
    picture = view.still()["text/html"]
    assert all(name in picture for name in calculate(view.question)["names"])
