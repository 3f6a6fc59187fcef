"""LLaMA and its heirs, read from a folder that transformers has saved: the same logits and gradients."""

import json
from functools import partial

import pytest
import torch
import transformers

from course_lib.models.llama import LlamaConfig
from course_lib.models.pretrained import load_llama, minilm_folder
from course_lib.models.rope_scaling import RopeScaling

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
BAND = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


def rope(kind, theta=500.0, **settings):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **settings}}


CONFIGURATIONS = {
    "grouped": {},
    "multi-query, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "wide heads": {"head_dim": 16},
    "linear": rope("linear", factor=4.0),
    "llama3": rope("llama3", factor=4.0, **BAND),
    "yarn": rope("yarn", factor=4.0, original_max_position_embeddings=16),
    "yarn, set": rope("yarn", theta=90.0, factor=2.0, beta_fast=8.0, beta_slow=2.0, attention_factor=1.5),
    "dynamic": rope("dynamic", factor=4.0),
}


def save(folder, config, **settings):
    """A random model of transformers in float64, saved."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    for p in model.parameters():  # norms start at 1: an error in them would not show
        torch.nn.init.normal_(p, std=0.2)
    model.save_pretrained(folder, **settings)
    for norm in model.modules():  # theirs rounds to 32 bits
        if hasattr(norm, "variance_epsilon"):
            norm.forward = partial(rms_norm, norm)
    return model


def rms_norm(norm, x):
    return torch.nn.functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def assert_same(ours, theirs, length=33):
    """Logits and gradients, in float64."""
    tokens = torch.randint(97, (2, length))
    mine, other = ours(tokens), theirs(tokens).logits
    assert (mine - other).abs().max() < 1e-9
    mine.square().mean().backward()
    other.square().mean().backward()
    gradients = {name: p.grad for name, p in ours.named_parameters()}
    for name, p in theirs.named_parameters():
        assert (gradients[name] - p.grad).abs().max() < 1e-9, name


@pytest.mark.parametrize("changes", CONFIGURATIONS.values(), ids=list(CONFIGURATIONS))
def test_llama_equals_transformers(tmp_path, changes):
    theirs = save(tmp_path, transformers.LlamaConfig(**SIZES | changes))
    ours, tokenizer = load_llama(tmp_path, torch.float64)
    assert not ours.training
    assert tokenizer is None
    assert ours.config.tie_word_embeddings == (ours.lm_head.weight is ours.model.embed_tokens.weight)
    assert_same(ours, theirs)


def test_qwen2_and_qwen3_equal_transformers(tmp_path):
    for kind in ("Qwen2", "Qwen3"):
        config = getattr(transformers, f"{kind}Config")(**SIZES, head_dim=8, tie_word_embeddings=True)
        theirs = save(tmp_path / kind, config)
        assert_same(load_llama(tmp_path / kind, torch.float64)[0], theirs)


def test_dynamic_scaling_beyond_the_original_length(tmp_path):
    theirs = save(
        tmp_path,
        transformers.LlamaConfig(**SIZES | {"max_position_embeddings": 16} | rope("dynamic", factor=4.0)),
    )
    ours, _ = load_llama(tmp_path, torch.float64)
    tokens = torch.randint(97, (1, 48))
    assert (ours(tokens) - theirs(tokens).logits).abs().max() < 1e-4, "they compute theta in 32 bits"
    with pytest.raises(ValueError, match="64"):
        ours(torch.randint(97, (1, 65)))


def test_files_in_16_bits_and_in_several_parts(tmp_path):
    theirs = save(tmp_path, transformers.LlamaConfig(**SIZES), max_shard_size="20kB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 3
    assert_same(load_llama(tmp_path, torch.float64)[0], theirs)
    theirs.bfloat16().save_pretrained(tmp_path / "bf16")
    model, _ = load_llama(tmp_path / "bf16")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model.model.norm.weight, theirs.model.norm.weight.float())


def test_older_settings_and_a_tokenizer(tmp_path):
    save(tmp_path, transformers.LlamaConfig(**SIZES))
    settings = json.loads((tmp_path / "config.json").read_text())
    del settings["rope_parameters"]
    settings |= {"rope_theta": 7e4, "rope_scaling": {"type": "linear", "factor": 2.0}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "tokenizer.json").write_bytes((minilm_folder() / "tokenizer.json").read_bytes())
    model, tokenizer = load_llama(tmp_path)
    scaling = RopeScaling("linear", 2.0, 64)
    assert model.config == LlamaConfig(**SIZES, rope_theta=7e4, rope_scaling=scaling)
    assert model.model.max_length == 128
    assert tokenizer.encode("a rank").tokens == ["[CLS]", "a", "rank", "[SEP]"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model_type": "gemma"}, "has model_type 'gemma'; only 'llama' or 'qwen2' or 'qwen3' is supported"),
        ({"hidden_act": "gelu"}, "has hidden_act 'gelu'; only 'silu' is supported"),
        ({"attention_bias": True}, "has attention_bias True; only False is supported"),
        ({"quantization_config": {}}, "holds quantized weights"),
        (rope("longrope", factor=2.0), "RoPE scaling has the kind 'longrope'; supported are linear, dynamic"),
        (rope("yarn", factor=2.0, mscale=1.0), "RoPE scaling has mscale; supported are linear"),
        (rope("linear", factor=0.5), "factor 0.5 and original length 64: both must be at least 1"),
        (
            {"num_hidden_layers": 4},
            r"has no model\.layers\.3\.input_layernorm\.weight, .* which its config",
        ),
        ({"num_hidden_layers": 2}, r"has model\.layers\.2\..*, for which there is no place"),
        ({"intermediate_size": 60}, r"gate_proj\.weight is \(56, 32\), and config\.json makes it \(60, 32\)"),
    ],
)
def test_what_is_not_supported_is_told_in_one_sentence(tmp_path, changes, sentence):
    save(tmp_path, transformers.LlamaConfig(**SIZES))
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | changes))
    with pytest.raises(ValueError, match=sentence):
        load_llama(tmp_path)


def test_a_missing_part_is_named(tmp_path):
    save(tmp_path, transformers.LlamaConfig(**SIZES), max_shard_size="20kB")
    next(iter(sorted(tmp_path.glob("model-*.safetensors")))).unlink()
    with pytest.raises(ValueError, match=r"holds no model-00001-of-.*\.safetensors"):
        load_llama(tmp_path)


def test_an_unknown_kind_of_scaling():
    with pytest.raises(ValueError, match="the kind of RoPE scaling is 'ntk'; choose one of linear"):
        RopeScaling("ntk", 2.0, 16)
