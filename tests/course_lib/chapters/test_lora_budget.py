"""The memory of LoRA in Hugging Face's LLaMA, held to its own autograd, and the picture of what was learned."""

from collections import Counter
from functools import partial
from itertools import combinations
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.helpers import disable_input_dtype_casting
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers import LlamaConfig, LlamaForCausalLM

from course_lib.chapters.lora_budget import (
    MATRICES,
    OTHER,
    RESULTS,
    Step,
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

LLAMA, A100 = MODELS["llama-2-7b"], GPUS["a100-80gb"]
WITHOUT_DOWN = MATRICES[:-1]
NAMES = {name: f"{name[0]}_proj" for name in MATRICES[:4]} | {name: f"{name}_proj" for name in MATRICES[4:]}
EIGHTH = 8  # of LLaMA's widths, and of the rank


RANK = 8 // EIGHTH
VIEWS = {
    "_unsafe_view",
    "alias",
    "as_strided",
    "detach",
    "empty",
    "expand",
    "permute",
    "select",
    "slice",
    "squeeze",
}
VIEWS |= {"t", "transpose", "unsqueeze", "view"}


def policy(_ctx, operation, *inputs, **_options):
    """As in the chapter."""
    name = str(operation)
    if "attention" in name or ("mm" in name and inputs[-2].shape[-1] > RANK):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


HOW: dict[str, Any] = {"context_fn": partial(create_selective_checkpoint_contexts, policy)}


def its_model(
    places, layers, recomputed=0, how=None, width=LLAMA.hidden // EIGHTH, mlp=LLAMA.mlp_width // EIGHTH
):
    """Hugging Face's own, an eighth as wide; no places: full."""
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=layers,
        vocab_size=LLAMA.vocab // EIGHTH,
        hidden_size=width,
        intermediate_size=mlp,
        num_attention_heads=LLAMA.heads // EIGHTH,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    try:
        model: Any = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    if places:
        targets = [NAMES[place] for place in places]
        model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2, target_modules=targets))
        for layer in model.get_base_model().model.layers[:recomputed]:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, **(how or {}))
    return model


def forward(model, tokens, lora=True):
    given = torch.arange(tokens)[None] % 7
    with torch.autocast("cpu", torch.bfloat16, enabled=lora):
        return model(input_ids=given, labels=given).loss


def peak(places, tokens, layers, recomputed=0, how=None):
    """Activations and temporary bytes at the peak of a step."""
    model = its_model(places, layers, recomputed, how)
    with record_memory(model) as log:
        if places:
            with disable_input_dtype_casting(model):
                forward(model, tokens).backward()
        else:
            forward(model, tokens, lora=False).backward()
    top = max(log.history().held, key=lambda held: held.activations + held.buffers)
    return top.activations, top.buffers


def each_token(places, layers, recomputed=0, how=None):
    """Bytes of a token, of LLaMA's width."""
    few, many = (peak(places, tokens, layers, recomputed, how) for tokens in (32, 64))
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


def test_with_the_chapters_policy_a_layer_keeps_the_results_of_frozen_products_and_of_attention():
    (one, _), (two, _) = (each_token(MATRICES, layers, layers, HOW) for layers in (2, 3))
    (few, many) = (lora_step(LLAMA, 1, recomputed=n, keep=RESULTS).activations for n in (0, 32))
    whole = lora_step(LLAMA, 1).activations
    assert few == whole
    assert two - one == pytest.approx((many - 4 * LLAMA.hidden - 4 * LLAMA.vocab) / LLAMA.layers, abs=128)


@pytest.mark.parametrize("how", [{}, HOW])
def test_the_gradients_are_the_same_bit_for_bit(how):
    found = []
    for recomputed in (0, 2):
        model = its_model(MATRICES, 2, recomputed, how, 128, 352)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.02)
        with disable_input_dtype_casting(model):
            forward(model, 32).backward()
        found.append([weight.grad for weight in model.parameters() if weight.requires_grad])
    assert len(found[0]) == 2 * 2 * len(MATRICES)
    assert all(a.equal(b) for a, b in zip(*found, strict=True))


class Moved(TorchDispatchMode):
    """Bytes that operations read and write; frozen products and attention are counted."""

    def __init__(self):
        super().__init__()
        self.bytes, self.dear = 0, Counter()

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        given = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        product = name == "mm" and min(*args[0].shape, *args[1].shape) > RANK
        if product or "attention" in name:
            self.dear["mm" if product else "attention"] += 1
        elif name not in VIEWS:
            parts = [
                p for part in (*args, given) for p in (part if isinstance(part, list | tuple) else [part])
            ]
            for t in parts:
                if isinstance(t, torch.Tensor):
                    self.bytes += min(t.numel() * t.element_size(), t.untyped_storage().nbytes())
        return given


def moved(width, mlp, recomputed, how):
    """Bytes of a token in a layer, in forward and in backward, and how many products a layer's backward has."""
    found = {}
    for tokens in (32, 64):
        for layers in (1, 2):
            model = its_model(MATRICES, layers, layers * recomputed, how, width, mlp)
            with disable_input_dtype_casting(model):
                with Moved() as ahead:
                    loss = forward(model, tokens)
                with Moved() as back:
                    loss.backward()
            found[tokens, layers] = (ahead.bytes, back.bytes, back.dear["mm"])
    ahead, back = (
        (found[64, 2][i] - found[64, 1][i] - found[32, 2][i] + found[32, 1][i]) / 32 for i in (0, 1)
    )
    return ahead, back, found[64, 2][2] - found[64, 1][2]


def test_the_bytes_beside_the_products_are_those_that_hugging_faces_layer_moves():
    width = 256

    def of(recomputed, how):
        (a, b, n), (c, d, _) = (moved(width, mlp, recomputed, how) for mlp in (256, 512))
        return [((2 * low - high) / width, (high - low) / 256) for low, high in ((a, c), (b, d))], n

    (ahead, back), once = of(0, {})
    (_, whole), twice = of(1, {})
    (_, cheap), cheap_products = of(1, HOW)
    assert ahead == pytest.approx(OTHER["forward"], rel=0.01)
    assert back == pytest.approx(OTHER["backward"], rel=0.01)
    for name, there in (("all again", whole), ("again", cheap)):
        again = [x - y for x, y in zip(there, back, strict=True)]
        assert again == pytest.approx(OTHER[name], rel=0.01)
    assert (once, twice, cheap_products) == (7, 14, 7)


def test_twenty_seven_layers_that_keep_all_results_are_the_cheapest_that_fit():
    held, once = lora_step(LLAMA, 16_384).total, lora_seconds(LLAMA, 16_384, A100)
    found = []
    for size in range(len(RESULTS) + 1):
        for keep in combinations(RESULTS, size):
            saved = held - lora_step(LLAMA, 16_384, recomputed=1, keep=keep).total
            layers = -int(-(held - 80e9) // saved)
            if layers <= LLAMA.layers:
                found.append((lora_seconds(LLAMA, 16_384, A100, layers, keep), layers, keep))
    seconds, layers, keep = min(found)
    assert (layers, keep) == (27, RESULTS)
    assert seconds / once == pytest.approx(1.065, abs=0.001)


def test_a_result_that_is_not_kept_costs_its_product():
    kept, gone = (lora_seconds(LLAMA, 4096, A100, 3, keep) for keep in (RESULTS, RESULTS[1:]))
    product = 2 * 4096 * LLAMA.hidden**2 / A100.peak_flops
    assert 3 * product < gone - kept < 3 * 1.5 * product


def test_whole_layers_take_no_longer_than_a_forward():
    longer = lora_seconds(LLAMA, 4096, A100, recomputed=32) / lora_seconds(LLAMA, 4096, A100) - 1
    assert 1 / 4 < longer < 1 / 2


def test_the_total_has_every_part():
    assert Step(1, 2, 3, 4, 5, 6).total == 20


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"places": ()}, "places must be one or more of query"),
        ({"places": ("gate", "gates")}, "not gates"),
        ({"keep": ("gates",)}, "not gates"),
        ({"recomputed": 33}, "layers must be 0 to 32"),
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
