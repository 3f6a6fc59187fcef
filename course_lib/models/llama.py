"""LLaMA (arXiv:2302.13971), with Hugging Face's module and parameter names, so that published weights load.

Pre-norm blocks as in GPT, with RMSNorm, rotary positions, SwiGLU and no biases; several query heads may share one head
of keys and values (grouped-query attention, arXiv:2305.13245). Some options make it a ChatGLM (``published.py``).

Attention is causal, unless it gets a ``mask`` (``masks.py``). Generation gives it a ``cache`` (``kv_cache.py``).

Shapes in comments: ``batch``, ``seq``, ``hidden``, ``heads``, ``kv_heads``, ``size`` (of one head).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.models.kv_cache import Cache, check_length, layer_options
from course_lib.models.norms import RMSNorm
from course_lib.models.positions import RotaryPositions
from course_lib.models.rope_scaling import RopeScaling


@dataclass(frozen=True)
class LlamaConfig:
    """Named as in a Hugging Face ``config.json``. The defaults are Llama-2-7B."""

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None  # None: as many as attention heads
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    # ChatGLM's ways (arXiv:2406.12793)
    qkv_bias: bool = False  # query, key and value have biases
    partial_rotary_factor: float = 1.0  # the part of each head that RoPE turns; 0: no positions at all
    rope_interleaved: bool = False  # RoPE turns neighbours, not entries half a head apart
    fused_gate_up: bool = False  # one matrix for the MLP's gate and up
    qk_norm: bool = False  # an RMSNorm for each head's query and key (arXiv:2010.04245; Qwen3)

    def __post_init__(self) -> None:
        if self.num_key_value_heads is None:
            object.__setattr__(self, "num_key_value_heads", self.num_attention_heads)
        if self.head_dim is None:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"hidden_size {self.hidden_size} does not divide into {self.num_attention_heads} heads; "
                    f"choose a multiple of {self.num_attention_heads}, or give a head_dim."
                )
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if int(self.head_dim * self.partial_rotary_factor) % 2:
            raise ValueError(f"head_dim is {self.head_dim}; rotary positions turn pairs, so it must be even.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads is {self.num_key_value_heads}; "
                f"it must divide the {self.num_attention_heads} attention heads."
            )

    @classmethod
    def tiny(cls, **changes: object) -> LlamaConfig:
        """A byte-level model of four narrow layers with grouped-query attention; ``changes`` replace its fields."""
        defaults = {
            "vocab_size": 256,
            "hidden_size": 128,
            "intermediate_size": 344,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
        }
        return cls(**(defaults | changes))


class LlamaCore(nn.Module):
    """Attention without weights, a module of its own so that it can be recomputed or replaced by itself.

    Query and result ``(batch, heads, seq, size)``, key and value ``(batch, kv_heads, seq, size)``. Causal, or with
    a mask that is true where a query may look at a key.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
        )


class LlamaAttention(nn.Module):
    """Self-attention. It counts heads from the width of the query, so it works on a share of them."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        h, self.head_size = config.hidden_size, config.head_dim
        width, kv_width = (
            n * self.head_size for n in (config.num_attention_heads, config.num_key_value_heads)
        )
        self.q_proj = nn.Linear(h, width, bias=config.qkv_bias)
        self.k_proj = nn.Linear(h, kv_width, bias=config.qkv_bias)
        self.v_proj = nn.Linear(h, kv_width, bias=config.qkv_bias)
        self.o_proj = nn.Linear(width, h, bias=False)
        if config.qk_norm:
            self.q_norm = RMSNorm(self.head_size, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_size, config.rms_norm_eps)
        self.rotary = RotaryPositions(
            self.head_size,
            config.rope_theta,
            config.partial_rotary_factor,
            config.rope_interleaved,
            config.rope_scaling,
        )
        self.core = LlamaCore()

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        attend: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """``positions`` and ``attend`` are a cache's: where the tokens stand, and what takes the core's place."""
        q, k, v = (self._split_heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.rotary(q, k, positions=positions)
        attended = (attend or self.core)(q, k, v, *(() if mask is None else (mask,)))
        return self.o_proj(attended.transpose(1, 2).flatten(2))  # (batch, seq, hidden)

    def _split_heads(self, x: Tensor) -> Tensor:
        heads = x.shape[-1] // self.head_size  # a rank may have none
        return x.unflatten(-1, (heads, self.head_size)).transpose(1, 2)  # (batch, heads, seq, size)


class LlamaMLP(nn.Module):
    """SwiGLU (arXiv:2002.05202): the up projection, gated by SiLU of another projection, and back."""

    def __init__(self, config: LlamaConfig, width: int | None = None) -> None:
        super().__init__()
        h, width = config.hidden_size, config.intermediate_size if width is None else width
        if config.fused_gate_up:
            self.gate_up_proj = nn.Linear(h, 2 * width, bias=False)
        else:
            self.gate_proj = nn.Linear(h, width, bias=False)
            self.up_proj = nn.Linear(h, width, bias=False)
        self.down_proj = nn.Linear(width, h, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "gate_up_proj"):
            gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(F.silu(gate) * up)


class LlamaLayer(nn.Module):
    """``mlp``, ``attention``: what stands in their place; None: a LLaMA's."""

    def __init__(
        self, config: LlamaConfig, mlp: nn.Module | None = None, attention: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = LlamaAttention(config) if attention is None else attention
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config) if mlp is None else mlp

    def forward(self, x: Tensor, **options: Any) -> Tensor:  # (batch, seq, hidden) in and out
        x = x + self.self_attn(self.input_layernorm(x), **options)
        return x + self.mlp(self.post_attention_layernorm(x))


class DecoderModel(nn.Module):
    """Tokens ``(batch, seq)`` to hidden states ``(batch, seq, hidden)``; ``layer`` says what the layers are."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        scaled = 0 if config.rope_scaling is None else config.rope_scaling.length
        self.max_length = max(config.max_position_embeddings, scaled)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(self.layer(config, number) for number in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def layer(self, config: Any, number: int) -> nn.Module:
        raise NotImplementedError

    def forward(self, tokens: Tensor, mask: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        positions = None if cache is None else cache.extend(tokens)
        check_length(tokens, positions, self.max_length)
        x = self.embed_tokens(tokens)
        options = layer_options(len(self.layers), tokens, mask, positions, cache)
        for layer, its_options in zip(self.layers, options, strict=True):
            x = layer(x, **its_options)
        return self.norm(x)


class LlamaModel(DecoderModel):
    def layer(self, config: LlamaConfig, number: int) -> LlamaLayer:
        return LlamaLayer(config)


class Decoder(nn.Module):
    """Tokens ``(batch, seq)`` to the logits of the token after each, ``(batch, seq, vocab)``.

    With a ``cache``, ``tokens`` are those that follow what the cache holds.

    Attributes:
        kind: of the model without its last layer.
    """

    kind: type[DecoderModel]

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = self.kind(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        return self.lm_head(self.model(tokens, mask, cache))  # (batch, seq, vocab)


class Llama(Decoder):
    """Its ``state_dict`` has the names of Hugging Face's ``LlamaForCausalLM``."""

    kind = LlamaModel
