"""The memory of LoRA in Hugging Face's LLaMA, held to its own autograd, and the picture of what was learned."""

from functools import partial
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.helpers import disable_input_dtype_casting
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

from course_lib.chapters.lora_budget import (
    MATRICES,
    PLAN,
    Step,
    fewest_recomputed,
    full_step,
    kept_rows,
    lora_seconds,
    lora_step,
    plot_seeds,
)
from course_lib.observe.ledgers.memory import record_memory
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.plots.picture import smallest_text
from simulator.predict.layer_time import layer_seconds
from simulator.predict.step import step_cost

LLAMA, A100 = MODELS["llama-2-7b"], GPUS["a100-80gb"]
WITHOUT_DOWN = MATRICES[:-1]
NAMES = {name: f"{name[0]}_proj" for name in MATRICES[:4]} | {name: f"{name}_proj" for name in MATRICES[4:]}
EIGHTH = 8  # of LLaMA's widths, and of the rank


def peak(places, tokens, layers, recomputed=0):
    """Activations and temporary bytes at the peak of Hugging Face's own step, an eighth as wide; no places: full."""
    config = LlamaConfig(
        num_hidden_layers=layers,
        vocab_size=LLAMA.vocab // EIGHTH,
        hidden_size=LLAMA.hidden // EIGHTH,
        intermediate_size=LLAMA.mlp_width // EIGHTH,
        num_attention_heads=LLAMA.heads // EIGHTH,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    if places:
        targets = [NAMES[place] for place in places]
        model = get_peft_model(model, LoraConfig(r=8 // EIGHTH, lora_alpha=2, target_modules=targets))
        base: Any = model.get_base_model()
        for layer in base.model.layers[:recomputed]:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    given = torch.zeros(1, tokens, dtype=torch.long)
    with record_memory(model) as log:
        if places:
            with disable_input_dtype_casting(model), torch.autocast("cpu", torch.bfloat16):
                loss = model(input_ids=given, labels=given).loss
        else:
            loss = model(input_ids=given, labels=given).loss
        loss.backward()
    top = max(log.history().held, key=lambda held: held.activations + held.buffers)
    return top.activations, top.buffers


def each_token(places, layers, recomputed=0):
    """Bytes of a token, of LLaMA's width."""
    few, many = (peak(places, tokens, layers, recomputed) for tokens in (32, 64))
    return [EIGHTH * (b - a) / 32 for a, b in zip(few, many, strict=True)]


def a_layer(step_of):
    return step_of(LLAMA, 1).activations / LLAMA.layers


@pytest.mark.parametrize("places", [MATRICES, WITHOUT_DOWN, ("query", "value"), ()])
def test_a_layer_keeps_what_autograd_keeps_in_hugging_faces(places):
    (one, _), (two, _) = each_token(places, 2), each_token(places, 3)
    with_ends = lora_step(LLAMA, 1, places).activations if places else full_step(LLAMA, 1).activations
    ends = (16 if places else 32) * LLAMA.hidden / 4 + 4 * LLAMA.vocab
    assert two - one == pytest.approx((with_ends - ends) / LLAMA.layers, abs=128)


def test_the_peak_is_that_of_hugging_faces():
    kept, temporary = each_token(MATRICES, 3, recomputed=1)
    own = lora_step(LLAMA, 1, recomputed=30)  # two layers keep all
    assert kept == pytest.approx(own.activations - 29 * 2 * LLAMA.hidden, rel=0.01)
    assert temporary == pytest.approx(own.loss, rel=0.02)


def test_the_table_is_all_but_a_few_numbers():
    kept = sum(row.bytes for row in kept_rows(LLAMA))
    ends = 4 * LLAMA.hidden + 4 * LLAMA.vocab
    layer = (lora_step(LLAMA, 1).activations - ends) / LLAMA.layers
    assert layer - kept == 2 * 8 * 7 + 4 * LLAMA.heads + 8


def test_what_is_trained_takes_sixteen_bytes_and_a_frozen_weight_two():
    step = lora_step(LLAMA, 1)
    assert step.trained == 19_988_480
    assert step.weights + step.gradients + step.optimizer == 2 * LLAMA.parameters + 16 * step.trained
    full = full_step(LLAMA, 1)
    assert full.weights + full.gradients + full.optimizer == 16 * LLAMA.parameters


def test_four_bits_are_saved_on_the_layers_matrices():
    saved = lora_step(LLAMA, 1).weights - lora_step(LLAMA, 1, bits=4).weights
    assert saved == pytest.approx((LLAMA.parameters - 2 * LLAMA.vocab * LLAMA.hidden) * 1.484, rel=1e-3)


def test_one_layer_fewer_does_not_fit():
    fewest = fewest_recomputed(LLAMA, 16_384, 80e9)
    assert fewest is not None
    assert lora_step(LLAMA, 16_384, recomputed=fewest).total <= 80e9
    assert lora_step(LLAMA, 16_384, recomputed=fewest - 1).total > 80e9
    assert fewest_recomputed(LLAMA, 16_384, 14e9) is None


def test_a_recomputed_layer_costs_its_forward():
    forward = layer_seconds(LLAMA, PLAN, A100).forward_seconds
    longer = lora_seconds(LLAMA, 4096, A100, recomputed=3) - lora_seconds(LLAMA, 4096, A100)
    assert longer == pytest.approx(3 * forward)


def test_a_step_with_lora_takes_less_than_full_fine_tuning():
    full = step_cost(LLAMA, PLAN, A100)
    assert lora_seconds(LLAMA, 4096, A100) < full.seconds - full.parts["optimizer"]


def test_the_total_has_every_part():
    assert Step(1, 2, 3, 4, 5, 6).total == 20


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"places": ()}, "places must be one or more of query"),
        ({"places": ("gate", "gates")}, "not gates"),
        ({"rank": 0}, "rank"),
        ({"recomputed": 33}, "0 to 32, the layers"),
        ({"bits": 8}, "bits"),
    ],
)
def test_what_is_no_lora_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        lora_step(LLAMA, 1, **given)


def test_every_setting_is_said_with_its_mean():
    picture = plot_seeds({"full": {"": [0.7, 0.8]}, "LoRA": {"rank 8": [0.6]}}, coin=0.5)
    assert picture.alt.endswith("full 75.0 %; LoRA: rank 8 60.0 %.")
    assert smallest_text(picture.svg) >= 11


@pytest.mark.parametrize("groups", [{}, {"full": {"": []}}])
def test_nothing_learned_is_refused(groups):
    with pytest.raises(ValueError, match="each setting with its seeds"):
        plot_seeds(groups, coin=0.5)
