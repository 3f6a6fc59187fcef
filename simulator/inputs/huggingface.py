"""A model's ``config.json``, as Hugging Face's transformers writes it, read as a ``ModelShape``.

Each family's function says in which places its layers differ from the plain layer of ``ModelShape``. The tests hold
every family to the number of parameters that transformers gives it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulator.inputs.shape import ModelShape

SWIGLU = ("silu", "swish", "gated-gelu", "gated-silu")


class Config(dict):
    """The entries of a ``config.json``; one that is missing ends in one sentence, not in a ``KeyError``."""

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"the config of this {self['model_type']} has no {name}")

    def either(self, *names: str) -> Any:
        """An entry that has had several names; the last is demanded."""
        return next((self[name] for name in names[:-1] if name in self), None) or self[names[-1]]

    def or_else(self, name: str, other: Any) -> Any:
        """An entry, or ``other`` where it is missing or null."""
        return other if self.get(name) is None else self[name]


def read_config(path: str | Path) -> ModelShape:
    """The shape of the model that a ``config.json``, or the folder that holds one, describes.

    Raises:
        ValueError: there is no such file, it is no config, or of a family that is not known here.
    """
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""  # no JSON
    return read_config_text(text, str(file))


def read_config_text(text: str, name: str) -> ModelShape:
    """The same of the text of a ``config.json``; ``name`` is what errors call it."""
    try:
        config = json.loads(text)
    except ValueError:
        raise ValueError(f"{name} is not JSON, as a config.json of Hugging Face is") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise ValueError(f"{name} names no model_type, as a config.json of Hugging Face does")
    family = FAMILIES.get(config["model_type"])
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise ValueError(f"model_type of {name} must be one of {known}, not {config['model_type']}")
    return family(Config(config))


def _llama(c: Config, **more: Any) -> ModelShape:
    """LLaMA, and what its heirs have besides; Mistral is the same."""
    h, heads = c["hidden_size"], c["num_attention_heads"]
    kv_heads, size = c.or_else("num_key_value_heads", heads), c.or_else("head_dim", h // heads)
    biases = (heads + 2 * kv_heads) * size + h if c.or_else("attention_bias", False) else 0
    biases += 2 * c["intermediate_size"] + h if c.or_else("mlp_bias", False) else 0
    more["other_layer_parameters"] = more.get("other_layer_parameters", 0) + biases
    return ModelShape(
        c["num_hidden_layers"],
        h,
        heads,
        c["vocab_size"],
        c["max_position_embeddings"],
        **{"kv_heads": kv_heads, "head_dim": size} | more,
        ffn=c["intermediate_size"],
        activation="swiglu",
        tied=c.or_else("tie_word_embeddings", False),
        learned_positions=False,
        biases=False,
        dropout=False,
    )


def _qwen2(c: Config) -> ModelShape:
    """Biases of q, k and v alone."""
    size = c["hidden_size"] // c["num_attention_heads"]
    biases = (c["num_attention_heads"] + 2 * c["num_key_value_heads"]) * size
    return _llama(c, other_layer_parameters=biases)


def _qwen3(c: Config, **more: Any) -> ModelShape:
    """A norm for each head's queries and keys."""
    size = c.or_else("head_dim", c["hidden_size"] // c["num_attention_heads"])
    return _llama(c, other_layer_parameters=2 * size, **more)


def _qwen3_moe(c: Config) -> ModelShape:
    if c.or_else("decoder_sparse_step", 1) != 1 or c.get("mlp_only_layers"):
        raise ValueError(
            "of a qwen3_moe all layers must have experts: decoder_sparse_step 1, no mlp_only_layers"
        )
    return _qwen3(
        c,
        experts=c.either("num_local_experts", "num_experts"),
        experts_per_token=c["num_experts_per_tok"],
        expert_ffn=c["moe_intermediate_size"],
    )


def _mixtral(c: Config) -> ModelShape:
    return _llama(c, experts=c["num_local_experts"], experts_per_token=c["num_experts_per_tok"])


def _deepseek(c: Config) -> ModelShape:
    """Latent attention, shared experts, first layers dense (arXiv:2405.04434, arXiv:2412.19437)."""
    return _llama(
        c,
        kv_heads=None,
        head_dim=c["qk_nope_head_dim"],
        rope_dim=c["qk_rope_head_dim"],
        value_dim=c["v_head_dim"],
        q_rank=c.get("q_lora_rank"),
        kv_rank=c["kv_lora_rank"],
        experts=c["n_routed_experts"],
        experts_per_token=c["num_experts_per_tok"],
        expert_ffn=c["moe_intermediate_size"],
        shared_experts=c.or_else("n_shared_experts", 0),
        dense_layers=c.or_else("first_k_dense_replace", 0),
    )


def _gpt_oss(c: Config) -> ModelShape:
    """Biases everywhere but in the norms, and a sink for each head (arXiv:2508.10925)."""
    experts, heads = c["num_local_experts"], c["num_attention_heads"]
    return ModelShape(
        c["num_hidden_layers"],
        c["hidden_size"],
        heads,
        c["vocab_size"],
        c["max_position_embeddings"],
        kv_heads=c["num_key_value_heads"],
        head_dim=c["head_dim"],
        ffn=c["intermediate_size"],
        activation="swiglu",
        tied=c.or_else("tie_word_embeddings", False),
        learned_positions=False,
        norm_biases=False,
        dropout=False,
        experts=experts,
        experts_per_token=c["num_experts_per_tok"],
        other_layer_parameters=heads + experts,  # the router's bias
        window=c.or_else("sliding_window", 128),
        full_layers=c["num_hidden_layers"] // 2,  # every second layer
    )


def _falcon(c: Config) -> ModelShape:
    """The first ones have one LayerNorm for both blocks, which holds as much as two norms without a bias."""
    h, new = c["hidden_size"], c.or_else("new_decoder_architecture", False)
    two_norms = new or not c.or_else("parallel_attn", True)
    one = 1 if c.or_else("multi_query", True) else c["num_attention_heads"]
    return ModelShape(
        c["num_hidden_layers"],
        h,
        c["num_attention_heads"],
        c["vocab_size"],
        c.or_else("max_position_embeddings", 2048),
        kv_heads=c.or_else("num_kv_heads", c["num_attention_heads"]) if new else one,
        ffn=c.or_else("ffn_hidden_size", 4 * h),
        tied=c.or_else("tie_word_embeddings", True),
        learned_positions=False,
        biases=c.or_else("bias", False),
        norm_biases=two_norms,
        dropout=False,
        other_parameters=0 if two_norms else h,
    )


def _bloom(c: Config) -> ModelShape:
    """ALiBi, and a norm behind the embedding."""
    h = c["hidden_size"]
    sizes = c["n_layer"], h, c["n_head"], c["vocab_size"], c.or_else("seq_length", 2048)
    return ModelShape(*sizes, learned_positions=False, dropout=False, other_parameters=2 * h)


def _gpt2(c: Config) -> ModelShape:
    sizes = c["n_layer"], c["n_embd"], c["n_head"], c["vocab_size"], c["n_positions"]
    dropout = c.or_else("resid_pdrop", 0.1) > 0
    return ModelShape(
        *sizes,
        ffn=c.or_else("n_inner", 4 * c["n_embd"]),
        dropout=dropout,
        tied=c.or_else("tie_word_embeddings", True),
    )


def _bert(c: Config) -> ModelShape:
    """Two token types and a pooler; its one norm outside the layers is that of the embedding."""
    h = c["hidden_size"]
    return ModelShape(
        c["num_hidden_layers"],
        h,
        c["num_attention_heads"],
        c["vocab_size"],
        c["max_position_embeddings"],
        ffn=c["intermediate_size"],
        dropout=c.or_else("hidden_dropout_prob", 0.1) > 0,
        other_parameters=c.or_else("type_vocab_size", 2) * h + h * (h + 1),
    )


def _same(c: Config, what: str, *names: str) -> int:
    """What encoder and decoder have alike; ``ModelShape`` has one number for both."""
    first, second = (c[name] for name in names)
    if first != second:
        raise ValueError(f"encoder and decoder must have the same {what}, not {first} and {second}")
    return first


def _bart(c: Config) -> ModelShape:
    """Positions and an embedding's norm on both sides, two positions more than tokens, no final norm."""
    h, s = c["d_model"], c["max_position_embeddings"]
    return ModelShape(
        c["encoder_layers"] + c["decoder_layers"],
        h,
        _same(c, "heads", "encoder_attention_heads", "decoder_attention_heads"),
        c["vocab_size"],
        s,
        ffn=_same(c, "width of the MLP", "encoder_ffn_dim", "decoder_ffn_dim"),
        decoder_layers=c["decoder_layers"],
        dropout=c.or_else("dropout", 0.1) > 0,
        other_parameters=(s + 4) * h + 2 * h,
    )


def _t5(c: Config) -> ModelShape:
    """RMSNorm, no biases, relative positions in the first layer of each side."""
    decoder = c.or_else("num_decoder_layers", c["num_layers"])
    return ModelShape(
        c["num_layers"] + decoder,
        c["d_model"],
        c["num_heads"],
        c["vocab_size"],
        c.or_else("n_positions", 512),
        head_dim=c["d_kv"],
        ffn=c["d_ff"],
        activation="swiglu" if c.or_else("feed_forward_proj", "relu") in SWIGLU else "gelu",
        tied=c.or_else("tie_word_embeddings", True),
        learned_positions=False,
        biases=False,
        dropout=c.or_else("dropout_rate", 0.1) > 0,
        decoder_layers=decoder,
        other_parameters=c["d_model"] + 2 * c.or_else("relative_attention_num_buckets", 32) * c["num_heads"],
    )


FAMILIES: dict[str, Callable[[Config], ModelShape]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "mixtral": _mixtral,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt_oss": _gpt_oss,
    "falcon": _falcon,
    "bloom": _bloom,
    "gpt2": _gpt2,
    "bert": _bert,
    "bart": _bart,
    "t5": _t5,
}
