"""The configurations of published models, and what can be read from them without their weights."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from course_lib.models.falcon import Falcon, FalconConfig
from course_lib.models.llama import Llama, LlamaConfig

CHATGLM = {"qkv_bias": True, "partial_rotary_factor": 0.5, "rope_interleaved": True, "fused_gate_up": True}

CHATGLM2 = LlamaConfig(
    vocab_size=65024,
    intermediate_size=13696,
    num_hidden_layers=28,
    num_key_value_heads=2,
    max_position_embeddings=32768,
    **CHATGLM,
)

CONFIGURATIONS: dict[str, LlamaConfig | FalconConfig] = {
    "LLaMA-7B": LlamaConfig(max_position_embeddings=2048, rms_norm_eps=1e-6),
    "Llama-2-70B": LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
    ),
    "ChatGLM2-6B": CHATGLM2,
    "ChatGLM3-6B": replace(CHATGLM2, max_position_embeddings=8192),
    "Falcon-7B": FalconConfig(),
    "Falcon-40B": FalconConfig(
        hidden_size=8192,
        num_hidden_layers=60,
        num_attention_heads=128,
        num_kv_heads=8,
        new_decoder_architecture=True,
    ),
}


def build(config: LlamaConfig | FalconConfig) -> Llama | Falcon:
    """The model of a configuration."""
    return Llama(config) if isinstance(config, LlamaConfig) else Falcon(config)


def build_without_memory(config: LlamaConfig | FalconConfig) -> Llama | Falcon:
    """The model with shapes but no values (on the meta device), so that 70 billion parameters fit anywhere."""
    with torch.device("meta"):
        return build(config)


def count_parameters(model: nn.Module) -> int:
    """A tensor that stands in two places (tied embeddings) counts once."""
    return sum(p.numel() for p in model.parameters())


def kv_heads(config: LlamaConfig | FalconConfig) -> int:
    """Heads of keys and values: Hugging Face names them differently in the two configurations."""
    return config.num_key_value_heads if isinstance(config, LlamaConfig) else config.num_kv_heads
