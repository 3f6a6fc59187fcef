"""The memory of LoRA in a LLaMA, and the pictures of what fits and of what was learned."""

from dataclasses import replace

import pytest
import torch

from course_lib.by_hand import lora
from course_lib.chapters.lora_budget import (
    MATRICES,
    PLAN,
    Line,
    kept_rows,
    lora_seconds,
    lora_step,
    plot_seeds,
    plot_tokens_that_fit,
)
from course_lib.models.llama import LlamaConfig, LlamaLayer
from course_lib.observe.ledgers.saved import saved_tensors
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.plots.picture import smallest_text
from simulator.predict.layer_time import layer_seconds
from simulator.predict.memory import activation_bytes, layer_bytes, plan_memory
from simulator.predict.step import step_cost

LLAMA, A100 = MODELS["llama-2-7b"], GPUS["a100-80gb"]
FULL, LORA = Line(400e6, 100e3), Line(80e6, 100e3)


def test_the_rows_are_what_the_simulator_counts():
    one_for_each_head = 4 * LLAMA.heads
    kept = PLAN.itemsize * sum(numbers for _, numbers, _ in kept_rows(LLAMA)) + one_for_each_head
    assert kept == layer_bytes(LLAMA, PLAN) / LLAMA.sequence


def test_lora_on_all_matrices_keeps_what_full_fine_tuning_keeps_and_the_narrow_numbers():
    step = lora_step(LLAMA, MATRICES)
    narrow = 2 * 8 * 7 * LLAMA.layers * LLAMA.sequence
    assert step.at(LLAMA.sequence).activations == activation_bytes(LLAMA, PLAN) + narrow
    assert step.trained == 19_988_480
    assert step.states.model_states == 2 * LLAMA.parameters + 16 * step.trained


NAMES = {name: f"{name[0]}_proj" for name in MATRICES[:4]} | {name: f"{name}_proj" for name in MATRICES[4:]}


@pytest.mark.parametrize("places", [("query", "value"), MATRICES[:4], MATRICES[:-1], ("down",)])
def test_places_differ_by_what_autograd_keeps(places):
    def kept(names):
        with torch.device("meta"):
            layer = LlamaLayer(LlamaConfig()).to(torch.bfloat16)
        lora.apply(layer, [NAMES[name] for name in names])
        return sum(t.bytes for t in saved_tensors(layer, torch.zeros(1, 64, 4096, dtype=torch.bfloat16))) / 64

    def said(names):
        return lora_step(LLAMA, names).line.token / LLAMA.layers

    assert said(MATRICES) - said(places) == pytest.approx(kept(MATRICES) - kept(places))


def test_layers_below_the_lowest_keep_nothing():
    whole, half = lora_step(LLAMA, MATRICES), lora_step(LLAMA, MATRICES, lowest=17)
    assert half.trained == whole.trained / 2
    assert whole.line.token - half.line.token == pytest.approx(
        16 * (layer_bytes(LLAMA, PLAN) / 4096 + 2 * 8 * 7)
    )


def test_recomputation_keeps_what_the_simulator_says_and_the_narrow_numbers_of_one_layer():
    plan = plan_memory(LLAMA, replace(PLAN, recompute="full"))[0]
    step = lora_step(LLAMA, MATRICES, recomputed=32)
    assert step.at(LLAMA.sequence).activations == plan.activations + plan.buffers + 2 * 8 * 7 * LLAMA.sequence


def test_a_layer_that_is_recomputed_saves_all_but_its_input_and_costs_its_forward():
    none, three = lora_step(LLAMA, MATRICES), lora_step(LLAMA, MATRICES, recomputed=3)
    saved = layer_bytes(LLAMA, PLAN) / 4096 + 2 * 8 * 7 - 2 * LLAMA.hidden
    assert none.line.token - three.line.token == pytest.approx(3 * saved)
    forward = layer_seconds(LLAMA, PLAN, A100).forward_seconds
    longer = lora_seconds(LLAMA, 4096, A100, recomputed=3) - lora_seconds(LLAMA, 4096, A100)
    assert longer == pytest.approx(3 * forward)


def test_a_step_with_lora_takes_less_than_full_fine_tuning_and_less_in_fewer_layers():
    full = step_cost(LLAMA, PLAN, A100)
    whole, half = lora_seconds(LLAMA, 4096, A100), lora_seconds(LLAMA, 4096, A100, lowest=17)
    assert half < whole < full.seconds - full.parts["optimizer"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"places": ()}, "places must be one or more of query"),
        ({"places": ("gate", "gates")}, "not gates"),
        ({"places": MATRICES, "lowest": 33}, "at most the 32 layers"),
        ({"places": MATRICES, "rank": 0}, "rank"),
        ({"places": MATRICES, "lowest": 31, "recomputed": 3}, "0 to 2, the layers"),
    ],
)
def test_what_is_no_lora_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        lora_step(LLAMA, **given)


def test_a_line_ends_where_the_gpu_is_full():
    picture = plot_tokens_that_fit({"full": FULL, "LoRA": LORA}, 8e9, 100_000, wanted=80_000)
    assert FULL.fit(8e9) == 76_000
    assert FULL.at(76_000) == 8e9
    assert picture.alt.endswith("up to 8 GB. full: 76,000 tokens fit; LoRA: 79,200 tokens fit.")
    assert "80,000" in picture.svg
    assert smallest_text(picture.svg) >= 11


def test_every_setting_is_said_with_its_mean():
    picture = plot_seeds({"full": {"": [0.7, 0.8]}, "LoRA": {"rank 8": [0.6]}}, coin=0.5)
    assert picture.alt.endswith("full 75.0 %; LoRA: rank 8 60.0 %.")
    assert smallest_text(picture.svg) >= 11


@pytest.mark.parametrize("groups", [{}, {"full": {"": []}}])
def test_nothing_learned_is_refused(groups):
    with pytest.raises(ValueError, match="each setting with its seeds"):
        plot_seeds(groups, coin=0.5)


@pytest.mark.parametrize(
    ("lines", "words"), [({}, "1 to 3 lines"), ({"full": Line(9e9, 1)}, "full before the first token")]
)
def test_lines_that_cannot_be_drawn_are_refused(lines, words):
    with pytest.raises(ValueError, match=words):
        plot_tokens_that_fit(lines, 8e9, 10)
