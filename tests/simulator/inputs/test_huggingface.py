"""A config.json's shape has the parameters that transformers' model of it has, family by family."""

import json
from types import SimpleNamespace

import pytest
import transformers
from torch import device

from simulator.inputs.huggingface import FAMILIES, read_config
from simulator.inputs.known_models import MODELS

SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 96}
GROUPED = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 112, "max_position_embeddings": 64}
LATENT = {
    **GROUPED,
    "num_key_value_heads": 8,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 1,
}
EXPERTS = {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
CASES = {
    "llama": ("Llama", [GROUPED, {**GROUPED, "attention_bias": True, "mlp_bias": True, "head_dim": 16}]),
    "mistral": ("Mistral", [GROUPED]),
    "qwen2": ("Qwen2", [GROUPED, {**GROUPED, "tie_word_embeddings": True}]),
    "qwen3": ("Qwen3", [{**GROUPED, "head_dim": 16}]),
    "qwen3_moe": (
        "Qwen3Moe",
        [
            {
                **GROUPED,
                "head_dim": 16,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 24,
            }
        ],
    ),
    "mixtral": ("Mixtral", [EXPERTS]),
    "deepseek_v2": ("DeepseekV2", [{**LATENT, "q_lora_rank": None}]),
    "deepseek_v3": ("DeepseekV3", [{**LATENT, "q_lora_rank": 40}, {**LATENT, "n_shared_experts": 1}]),
    "gpt_oss": ("GptOss", [{**EXPERTS, "head_dim": 16}]),
    "falcon": (
        "Falcon",
        [SMALL, {**SMALL, "new_decoder_architecture": True, "num_kv_heads": 2}, {**SMALL, "bias": True}],
    ),
    "bloom": ("Bloom", [{"hidden_size": 64, "n_layer": 3, "n_head": 8, "vocab_size": 96}]),
    "gpt2": ("GPT2LMHead", [{"n_embd": 64, "n_layer": 3, "n_head": 8, "vocab_size": 96, "n_inner": 80}]),
    "bert": ("Bert", [GROUPED]),
    "bart": (
        "Bart",
        [{"d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "vocab_size": 96}],
    ),
    "t5": (
        "T5",
        [
            {"d_model": 64, "num_layers": 2, "num_decoder_layers": 3, "vocab_size": 96, "d_kv": 16},
            {"d_model": 64, "num_layers": 2, "vocab_size": 96, "feed_forward_proj": "gated-gelu"},
        ],
    ),
}
SUFFIX = {
    "Bert": "Model",
    "GPT2LMHead": "Model",
    "Bart": "ForConditionalGeneration",
    "T5": "ForConditionalGeneration",
}
# Parameters in all and those that one token meets, as their authors' checkpoints have them.
COUNTED = {
    "deepseek-v2": (235_741_434_880, 21_375_800_320),
    "deepseek-v3": (671_026_404_352, 37_552_282_624),
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "mixtral-8x22b": (140_630_071_296, None),
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704),
    "gpt-oss-120b": (116_829_156_672, 5_711_982_912),
    "t5-11b": (11_307_321_344, None),
    "bart-base": (139_420_416, None),
    "falcon-7b": (6_921_720_704, None),
    "chatglm-6b": (6_173_286_400, None),
    "llama-7b": (6_738_415_616, None),
    "llama-13b": (13_015_864_320, None),
}


def made(family, entries):
    """transformers' model without memory, and its config."""
    name = CASES[family][0]
    config = getattr(transformers, name.removesuffix("LMHead") + "Config")(**entries)
    with device("meta"):
        model = getattr(transformers, name + SUFFIX.get(name, "ForCausalLM"))(config)
    return SimpleNamespace(config=config, parameters=sum(p.numel() for p in model.parameters()))


@pytest.mark.parametrize(
    ("family", "case"), [(f, i) for f, (_, cases) in CASES.items() for i in range(len(cases))]
)
def test_parameters_are_those_of_transformers(family, case, tmp_path):
    model = made(family, CASES[family][1][case])
    model.config.save_pretrained(tmp_path)
    assert read_config(tmp_path).parameters == model.parameters


def test_every_family_is_tried():
    assert CASES.keys() == FAMILIES.keys()


@pytest.mark.parametrize("name", COUNTED)
def test_known_models_have_their_parameters(name):
    everything, active = COUNTED[name]
    assert MODELS[name].parameters == everything
    assert active is None or MODELS[name].active_parameters == active


def test_one_kind_of_layer_is_itself_and_two_add_up():
    assert MODELS["llama-2-7b"].kinds() == {MODELS["llama-2-7b"]: 32}
    shape = MODELS["deepseek-v3"]
    dense, mixture = shape.kinds()
    assert (dense.experts, mixture.experts) == (1, 256)
    assert list(shape.kinds().values()) == [3, 58]
    assert shape.kinds(2, 4) == {dense: 1, mixture: 3}
    assert MODELS["t5-11b"].kinds(24) == {list(MODELS["t5-11b"].kinds())[1]: 24}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "is not JSON"),
        ("{}", "names no model_type"),
        ('{"model_type": "mamba"}', "not mamba"),
        ('{"model_type": "gpt2"}', "has no n_layer"),
    ],
)
def test_what_is_no_config_ends_in_a_sentence(text, words, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_config(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        read_config(tmp_path / "nothing.json")


def test_sides_that_differ_are_refused(tmp_path):
    config = {"model_type": "bart", "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 96}
    config |= {"max_position_embeddings": 32, "encoder_attention_heads": 4, "decoder_attention_heads": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="the same heads, not 4 and 8"):
        read_config(tmp_path)
