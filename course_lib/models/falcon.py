"""Falcon (arXiv:2311.16867), with Hugging Face's module and parameter names, so that published weights load.

Attention and MLP read the same input and stand side by side (the parallel block), one matrix makes queries, keys and
values, and few heads of keys and values serve all queries (one in Falcon-7B). It is a file beside ``llama.py`` and no
option of it, because none of the names of their modules agree; RoPE, the attention core and the cache are shared.

Shapes in comments: ``batch``, ``seq``, ``hidden``, ``heads``, ``kv_heads``, ``size`` (of one head).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.models.kv_cache import Cache, check_length, layer_options
from course_lib.models.llama import LlamaCore
from course_lib.models.positions import RotaryPositions


@dataclass(frozen=True)
class FalconConfig:
    """Named as in a Hugging Face ``config.json``. The defaults are Falcon-7B."""

    vocab_size: int = 65024
    hidden_size: int = 4544
    num_hidden_layers: int = 32
    num_attention_heads: int = 71
    num_kv_heads: int = 1
    new_decoder_architecture: bool = False  # Falcon-40B: attention and MLP have a norm each
    max_position_embeddings: int = 2048
    layer_norm_epsilon: float = 1e-5
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} does not divide into {self.num_attention_heads} heads; "
                f"choose a multiple of {self.num_attention_heads}."
            )
        if self.num_kv_heads < 1 or self.num_attention_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads is {self.num_kv_heads}; it must divide the {self.num_attention_heads} attention heads."
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


class FalconAttention(nn.Module):
    """Self-attention with one matrix for queries, keys and values.

    Its columns come in groups, one for each head of keys and values: the queries that share it, the key, the value.
    It counts groups from the width, so it works on a share of them.
    """

    def __init__(self, config: FalconConfig) -> None:
        super().__init__()
        self.head_size = config.head_dim
        self.group = config.num_attention_heads // config.num_kv_heads + 2  # heads in a group of columns
        columns = config.num_kv_heads * self.group * self.head_size
        self.query_key_value = nn.Linear(config.hidden_size, columns, bias=False)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.rotary = RotaryPositions(self.head_size, config.rope_theta)
        self.core = LlamaCore()

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        attend: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """``positions`` and ``attend`` are a cache's: where the tokens stand, and what takes the core's place."""
        groups = self.query_key_value(x).unflatten(-1, (-1, self.group, self.head_size))
        q = groups[..., :-2, :].flatten(2, 3).transpose(1, 2)  # (batch, heads, seq, size)
        k, v = (groups[..., i, :].transpose(1, 2) for i in (-2, -1))  # (batch, kv_heads, seq, size)
        q, k = self.rotary(q, k, positions=positions)
        attended = (attend or self.core)(q, k, v, *(() if mask is None else (mask,)))
        return self.dense(attended.transpose(1, 2).flatten(2))  # (batch, seq, hidden)


class FalconMLP(nn.Module):
    """Four times wider, GELU, and back, without biases."""

    def __init__(self, config: FalconConfig) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(config.hidden_size, 4 * config.hidden_size, bias=False)
        self.dense_4h_to_h = nn.Linear(4 * config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x)))


class FalconLayer(nn.Module):
    """The parallel block: x + attention(norm(x)) + mlp(norm(x)), so neither branch waits for the other."""

    def __init__(self, config: FalconConfig) -> None:
        super().__init__()
        names = ("ln_attn", "ln_mlp") if config.new_decoder_architecture else ("input_layernorm",)
        for name in names:
            setattr(self, name, nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon))
        self.norm_names = (names[0], names[-1])  # attention's and the MLP's
        self.self_attention = FalconAttention(config)
        self.mlp = FalconMLP(config)

    def forward(self, x: Tensor, **options: Any) -> Tensor:  # (batch, seq, hidden) in and out
        attention_norm, mlp_norm = (getattr(self, name) for name in self.norm_names)
        return x + self.self_attention(attention_norm(x), **options) + self.mlp(mlp_norm(x))


class FalconModel(nn.Module):
    """Tokens ``(batch, seq)`` to hidden states ``(batch, seq, hidden)``."""

    def __init__(self, config: FalconConfig) -> None:
        super().__init__()
        self.max_length = config.max_position_embeddings
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.h = nn.ModuleList(FalconLayer(config) for _ in range(config.num_hidden_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        positions = None if cache is None else cache.extend(tokens)
        check_length(tokens, positions, self.max_length)
        x = self.word_embeddings(tokens)
        options = layer_options(len(self.h), tokens, mask, positions, cache)
        for layer, its_options in zip(self.h, options, strict=True):
            x = layer(x, **its_options)
        return self.ln_f(x)


class Falcon(nn.Module):
    """Tokens ``(batch, seq)`` to the logits of the token after each, ``(batch, seq, vocab)``.

    Its ``state_dict`` has the names of Hugging Face's ``FalconForCausalLM``. With a ``cache``, ``tokens`` are those
    that follow what the cache holds.
    """

    def __init__(self, config: FalconConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = FalconModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.transformer.word_embeddings.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        return self.lm_head(self.transformer(tokens, mask, cache))  # (batch, seq, vocab)
