"""The memory of LoRA in Hugging Face's LLaMA, held to its own autograd, and the picture of the plans."""

import json
import re
from collections import Counter
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.helpers import disable_input_dtype_casting
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers import LlamaConfig, LlamaForCausalLM

from course_lib.chapters.lora_budget import (
    CHEAP,
    KEEPABLE,
    MADE,
    MATRICES,
    OTHER,
    RESULTS,
    Step,
    again_seconds,
    full_step,
    kept_rows,
    lora_seconds,
    lora_step,
    plot_prices,
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


def and_cheap(ctx, operation, *inputs, **options):
    """What SiLU and SwiGLU's product give is kept too."""
    mlp = LLAMA.mlp_width // EIGHTH
    wide = [isinstance(x, torch.Tensor) and x.shape[-1] == mlp for x in inputs]
    if "silu" in str(operation) or ("mul" in str(operation) and len(wide) == 2 and all(wide)):
        return CheckpointPolicy.MUST_SAVE
    return policy(ctx, operation, *inputs, **options)


HOW: dict[str, Any] = {"context_fn": partial(create_selective_checkpoint_contexts, policy)}
ALSO_CHEAP: dict[str, Any] = {"context_fn": partial(create_selective_checkpoint_contexts, and_cheap)}


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


@pytest.mark.parametrize(("how", "keep"), [(HOW, RESULTS), (ALSO_CHEAP, KEEPABLE)])
def test_with_the_chapters_policy_a_layer_keeps_the_results_that_it_names(how, keep):
    (one, _), (two, _) = (each_token(MATRICES, layers, layers, how) for layers in (2, 3))
    (few, many) = (lora_step(LLAMA, 1, recomputed=n, keep=keep).activations for n in (0, 32))
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

    def __init__(self, rank=RANK):
        super().__init__()
        self.rank, self.bytes, self.dear, self.ran = rank, 0, Counter(), Counter()

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        given = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.ran[name] += 1
        product = name == "mm" and min(*args[0].shape, *args[1].shape) > self.rank
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


def test_a_norm_moves_as_many_bytes_as_the_table_says():
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm, found = LlamaRMSNorm(256).to(torch.bfloat16), []
    for tokens in (32, 64):
        x = torch.ones(1, tokens, 256, dtype=torch.bfloat16)
        with Moved() as ahead:
            norm(x)
        found.append(ahead.bytes)
    assert (found[1] - found[0]) / 32 / 256 == pytest.approx(MADE[1][1][0], rel=0.01)


def test_the_table_has_all_that_runs_again():
    assert len(MADE) == len(kept_rows(LLAMA)) + 1
    assert tuple(sum(rest[i] for _, rest in MADE) for i in (0, 1)) == OTHER["again"]
    dear, rest = (sum(part) for part in zip(*again_seconds(LLAMA, 16_384, A100), strict=True))
    none, cheap = (lora_seconds(LLAMA, 16_384, A100, n, RESULTS) for n in (0, 32))
    assert rest == pytest.approx(cheap - none)
    whole = lora_seconds(LLAMA, 16_384, A100, 32)
    assert dear + rest == pytest.approx(whole - none, rel=0.02)  # the products of each A run again too


def test_of_the_plans_that_all_layers_share_the_cheapest_that_fits_keeps_matrices_and_attention():
    once, found = lora_seconds(LLAMA, 16_384, A100), []
    for size in range(len(KEEPABLE) + 1):
        for keep in combinations(KEEPABLE, size):
            if lora_step(LLAMA, 16_384, recomputed=32, keep=keep).total <= 80e9:
                found.append((lora_seconds(LLAMA, 16_384, A100, 32, keep), keep))
    seconds, keep = min(found)
    assert keep == RESULTS
    assert seconds / once == pytest.approx(1.077, abs=0.001)


@pytest.mark.parametrize("name", CHEAP)
def test_a_cheap_result_that_is_kept_does_not_run_again(name):
    kept, gone = (lora_seconds(LLAMA, 4096, A100, 32, keep) for keep in ((*RESULTS, name), RESULTS))
    place = [row.what for row in kept_rows(LLAMA)].index({"SiLU": "what SiLU gives"}.get(name, f"the {name}"))
    assert gone - kept == pytest.approx(again_seconds(LLAMA, 4096, A100)[place][1])


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


def test_every_plan_is_said():
    picture = plot_prices({"none": (110e9, 0, (0, 9)), "all": (25e9, 38, (9, 30))}, 80e9, "all")
    assert picture.alt.endswith("none 110 GB, 0 % longer; all 25 GB, 38 % longer.")
    assert smallest_text(picture.svg) >= 11


@pytest.mark.parametrize("plans", [{}, {"none": (1.0, 0.0, (0, 0))}])
def test_a_best_plan_that_is_not_there_is_refused(plans):
    with pytest.raises(ValueError, match="best"):
        plot_prices(plans, 80e9, "all")


CELLS = json.loads((Path(__file__).parents[3] / "notebooks/17_lora_and_adapters.ipynb").read_text("utf-8"))[
    "cells"
]
SOURCES = ["".join(cell["source"]) for cell in CELLS]


@pytest.mark.parametrize(("mode", "silus"), [("train()", 4), ("eval()", 2)])
def test_the_chapters_listing_runs_no_frozen_product_and_no_attention_twice(tmp_path, mode, silus):
    its_model((), 2, width=128, mlp=352).save_pretrained(tmp_path)
    listing = next(
        found[1] for text in SOURCES if (found := re.search(r"```python\n(.*?)```", text, re.DOTALL))
    )
    for old, new in (("meta-llama/Llama-2-7b-hf", str(tmp_path)), ('"cuda"', '"cpu"'), ("train()", mode)):
        assert old in listing
        listing = listing.replace(old, new)
    names: dict[str, Any] = {"tokens": torch.arange(32)[None]}
    with Moved(rank=8) as ran:
        exec(listing, names)
    assert ran.ran["silu"] == silus
    assert ran.dear == {"mm": 2 * (2 * 7 + 1), "attention": 2 * 2}
    assert all(weight.grad is not None for weight in names["trained"])


@pytest.fixture(scope="module")
def chapter():
    names: dict[str, Any] = {}
    for source in (
        SOURCES[1],
        next(text for text in SOURCES if text.startswith("def kept(")).split("\n\n\n")[0],
    ):
        exec(source, names)
    return names


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("16 / 8 * (x @ self.A.T) @ self.B.T", "right, and the MLP keeps 3,472 numbers$"),
        ("16 / 8 * (self.B @ (self.A @ x.T)).T", "right, and the MLP keeps 3,472 numbers$"),
        (
            "16 / 8 * x @ (self.B @ self.A).T",
            r"1,183,104 numbers; a new matrix is among them: let x go through A",
        ),
        ("x @ self.A.T @ self.B.T", "adds 0.5 times what it should"),
        ("16 / 8 * self.B @ (self.A @ x)", r"8x4 and 2x4\); a token is a row of x, so A x is x @ self.A.T"),
        ("16 / 8 * self.B @ (self.A @ x.T)", "a token is a row of x"),
        ("F.linear(x, self.A)", "your line stops: name 'F' is not defined$"),
        ("x.sum()", "something else"),
        ("0", "still missing"),
    ],
)
def test_the_judge_says_what_a_line_lacks(chapter, capsys, line, said):
    source = next(text for text in SOURCES if text.startswith("class Beside"))
    exec(source.replace("self.W(x)  #", f"self.W(x) + {line}  #"), chapter)
    assert re.search(said, capsys.readouterr().out.strip())


def test_a_choice_may_stand_alone_and_a_wrong_name_is_told(chapter, capsys):
    chapter["fit"]("SiLU")
    assert "%  SiLU" in capsys.readouterr().out
    chapter["fit"]([...])
    assert "in place of ...: 'q, k, v'," in capsys.readouterr().out
    for call, wrong in ((chapter["fit"], ["norm 1"]), (chapter["leave_out"], ["gate"])):
        with pytest.raises(chapter["Refused"], match="the names"):
            call(wrong)
