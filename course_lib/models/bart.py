"""BART (arXiv:1910.13461), with Hugging Face's module and parameter names, so that published weights load.

An encoder reads a text with noise in it; a decoder writes the text as it was, token by token. The encoder is BERT's:
every token sees every token. The decoder is GPT's: a token sees those before it. Each of its layers has one more
attention, whose keys and values come from the encoder's output, the ``memory``. Norms stand after the residual.

Shapes in comments: ``batch``, ``source`` and ``target`` (lengths), ``hidden``, ``heads``, ``size`` (of one head).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.models.bert import BertCore
from course_lib.models.gpt import CausalCore
from course_lib.models.kv_cache import Cache, check_length, layer_options
from course_lib.models.masks import causal_mask, padding_mask, see_itself

FIRST_POSITION = 2  # the table of positions has two rows before the first token's, which nobody reads


@dataclass(frozen=True)
class BartConfig:
    """Named as in a Hugging Face ``config.json``. The defaults are BART-base."""

    vocab_size: int = 50265
    d_model: int = 768
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 12
    decoder_attention_heads: int = 12
    encoder_ffn_dim: int = 3072
    decoder_ffn_dim: int = 3072
    max_position_embeddings: int = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    scale_embedding: bool = False  # embeddings times sqrt(d_model), before positions are added
    bos_token_id: int = 0
    pad_token_id: int = 1
    eos_token_id: int = 2
    decoder_start_token_id: int = 2
    # Published states hold a row of zeros that is added to the logits. False: no such row; a pipeline needs that.
    final_logits_bias: bool = True

    def __post_init__(self) -> None:
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            if self.d_model % (heads := getattr(self, name)):
                raise ValueError(
                    f"d_model {self.d_model} does not divide into the {heads} heads of {name}; "
                    f"choose a multiple of {heads}."
                )
        for name in ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"):
            if not 0 <= (token := getattr(self, name)) < self.vocab_size:
                raise ValueError(
                    f"{name} is {token}; with {self.vocab_size} tokens it runs from 0 to {self.vocab_size - 1}."
                )

    @classmethod
    def tiny(cls, **changes: object) -> BartConfig:
        """Two narrow layers on each side without dropout, for tests and quick runs; ``changes`` replace fields."""
        defaults = {
            "vocab_size": 1000,
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 256,
            "decoder_ffn_dim": 256,
            "max_position_embeddings": 64,
            "dropout": 0.0,
        }
        return cls(**(defaults | changes))


class BartAttention(nn.Module):
    """Queries from ``x``; keys and values from ``memory``, or, without one, from ``x``.

    It counts heads from the width of the query, so it works on a share of them.
    """

    def __init__(self, config: BartConfig, heads: int, causal: bool = False) -> None:
        super().__init__()
        h = config.d_model
        self.head_size = h // heads
        self.q_proj = nn.Linear(h, h)
        self.k_proj = nn.Linear(h, h)
        self.v_proj = nn.Linear(h, h)
        self.core = (CausalCore if causal else BertCore)(config.attention_dropout)
        self.out_proj = nn.Linear(h, h)

    def forward(
        self,
        x: Tensor,  # (batch, target, hidden)
        memory: Tensor | None = None,  # (batch, source, hidden)
        mask: Tensor | None = None,
        attend: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """``mask``: true where a query may look at a key. ``attend`` is a cache's and takes the core's place."""
        read = x if memory is None else memory
        q, k, v = self.q_proj(x), self.k_proj(read), self.v_proj(read)
        heads = q.shape[-1] // self.head_size  # a rank may have a part of them
        q, k, v = (y.unflatten(-1, (heads, self.head_size)).transpose(1, 2) for y in (q, k, v))
        attended = (attend or self.core)(q, k, v, mask)  # (batch, heads, target, size)
        return self.out_proj(attended.transpose(1, 2).flatten(2))  # (batch, target, hidden)


class BartEncoderLayer(nn.Module):
    def __init__(self, config: BartConfig, heads: int, ffn: int, causal: bool = False) -> None:
        super().__init__()
        h = config.d_model
        self.self_attn = BartAttention(config, heads, causal)
        self.self_attn_dropout = nn.Dropout(config.dropout)
        self.self_attn_layer_norm = nn.LayerNorm(h)
        self.mlp_input = (
            nn.Identity()
        )  # a name for the place where the MLP begins: it has no module of its own
        self.fc1 = nn.Linear(h, ffn)
        self.activation_dropout = nn.Dropout(config.activation_dropout)
        self.fc2 = nn.Linear(ffn, h)
        self.final_dropout = nn.Dropout(config.dropout)
        self.final_layer_norm = nn.LayerNorm(h)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # (batch, source, hidden) in and out
        return self.mlp(self.see(x, mask))

    def see(self, x: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
        y = self.self_attn_dropout(self.self_attn(x, None, mask, **options))
        return self.self_attn_layer_norm(x + y)

    def mlp(self, x: Tensor) -> Tensor:
        y = F.gelu(self.fc1(self.mlp_input(x)))
        y = self.fc2(self.activation_dropout(y))
        return self.final_layer_norm(x + self.final_dropout(y))


class BartDecoderLayer(BartEncoderLayer):
    """An encoder's layer that sees no later token, with attention to the memory in its middle."""

    def __init__(self, config: BartConfig, heads: int, ffn: int) -> None:
        super().__init__(config, heads, ffn, causal=True)
        self.memory_input = nn.Identity()  # a name for the place where the memory comes in
        self.encoder_attn = BartAttention(config, heads)
        self.encoder_attn_dropout = nn.Dropout(config.dropout)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model)

    def forward(
        self,
        x: Tensor,  # (batch, target, hidden), as the result
        memory: Tensor,  # (batch, source, hidden)
        memory_mask: Tensor | None = None,
        mask: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        x = self.see(x, mask, **options)
        y = self.encoder_attn(x, self.memory_input(memory), memory_mask)
        y = self.encoder_attn_dropout(y)
        return self.mlp(self.encoder_attn_layer_norm(x + y))


class BartPositions(nn.Embedding):
    """Learned positions, ``(seq,)`` to ``(seq, hidden)``."""

    def forward(self, positions: Tensor) -> Tensor:
        return super().forward(positions + FIRST_POSITION)


class BartEmbedding(nn.Module):
    """How encoder and decoder begin: token and position, added and normalised. They share the tokens' matrix."""

    def __init__(self, config: BartConfig, embed_tokens: nn.Embedding) -> None:
        super().__init__()
        self.length = config.max_position_embeddings
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_tokens = embed_tokens
        self.embed_positions = BartPositions(self.length + FIRST_POSITION, config.d_model)
        self.layernorm_embedding = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        check_length(tokens, positions, self.length)
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embed_tokens(tokens) * self.scale + self.embed_positions(positions)
        return self.dropout(self.layernorm_embedding(x))  # (batch, seq, hidden)


class BartEncoder(BartEmbedding):
    """Tokens ``(batch, source)`` to the memory ``(batch, source, hidden)``."""

    def __init__(self, config: BartConfig, embed_tokens: nn.Embedding) -> None:
        super().__init__(config, embed_tokens)
        sizes = config.encoder_attention_heads, config.encoder_ffn_dim
        self.layers = nn.ModuleList(BartEncoderLayer(config, *sizes) for _ in range(config.encoder_layers))

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return x


class BartDecoder(BartEmbedding):
    """Tokens ``(batch, target)`` and the memory to hidden states ``(batch, target, hidden)``."""

    def __init__(self, config: BartConfig, embed_tokens: nn.Embedding) -> None:
        super().__init__(config, embed_tokens)
        sizes = config.decoder_attention_heads, config.decoder_ffn_dim
        self.layers = nn.ModuleList(BartDecoderLayer(config, *sizes) for _ in range(config.decoder_layers))

    def forward(
        self,
        tokens: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        x = self.embed(tokens, None if cache is None else cache.extend(tokens))
        options = layer_options(len(self.layers), tokens, mask, None, cache)
        for layer, its_options in zip(self.layers, options, strict=True):
            x = layer(x, memory, memory_mask, **its_options)
        return x


class BartModel(nn.Module):
    def __init__(self, config: BartConfig) -> None:
        super().__init__()
        self.shared = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_token_id)
        self.encoder = BartEncoder(config, self.shared)
        self.decoder = BartDecoder(config, self.shared)


class Bart(nn.Module):
    """A source and the target so far to the logits of the target's next tokens, ``(batch, target, vocab)``.

    The decoder reads what it shall write, one place to the right: ``decoder_tokens = shift_right(targets, …)``.
    ``mask`` ``(batch, source)`` and ``decoder_mask`` ``(batch, target)`` are 1 (or true) for a token and 0 for padding.
    Its ``state_dict`` has the names of Hugging Face's ``BartForConditionalGeneration``.
    """

    def __init__(self, config: BartConfig) -> None:
        super().__init__()
        self.config = config
        self.model = BartModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.final_logits_bias:
            self.register_buffer("final_logits_bias", torch.zeros(1, config.vocab_size))
        self.apply(_initialise)
        self.lm_head.weight = self.model.shared.weight

    def forward(
        self,
        tokens: Tensor,
        decoder_tokens: Tensor,
        mask: Tensor | None = None,
        decoder_mask: Tensor | None = None,
    ) -> Tensor:
        keys, seen = attention_masks(mask, decoder_mask)
        memory = self.model.encoder(tokens, keys)
        return self.logits(self.model.decoder(decoder_tokens, memory, keys, seen))

    def logits(self, x: Tensor) -> Tensor:
        logits = self.lm_head(x)  # (batch, target, vocab)
        return logits + self.final_logits_bias if self.config.final_logits_bias else logits


def attention_masks(mask: Tensor | None, decoder_mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """From what is no padding to what may be seen: in the source, and in the target (None there: all before)."""
    keys = None if mask is None else padding_mask(mask)  # (batch, 1, 1, source)
    if decoder_mask is None:
        return keys, None
    causal = causal_mask(decoder_mask.shape[1], device=decoder_mask.device)
    return keys, see_itself(causal & padding_mask(decoder_mask))  # (batch, 1, target, target)


def shift_right(targets: Tensor, start: int, padding: int) -> Tensor:
    """What the decoder reads: ``start``, then all targets but the last. A target of -100 becomes padding."""
    return F.pad(targets[:, :-1].masked_fill(targets[:, :-1] == -100, padding), (1, 0), value=start)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        nn.init.zeros_(module.weight[module.padding_idx])
