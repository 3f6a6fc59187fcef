"""GPT: a decoder-only transformer after GPT-2, small enough to read at a sitting.

Pre-norm blocks, learned positions, GELU (tanh form), output weights tied to the token embedding. Query, key and
value are three linear layers rather than one, so that a table of names can say how each is split.

Attention is causal, unless it gets a ``mask`` (``masks.py``). Generation gives it a ``cache`` (``kv_cache.py``).

Shapes in comments: ``batch``, ``seq``, ``hidden``, ``heads``, ``size`` (of one head: hidden / heads).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.models.kv_cache import Cache, check_length, layer_options


@dataclass(frozen=True)
class GPTConfig:
    """The defaults are GPT-2's smallest model."""

    vocab_size: int = 50257
    max_length: int = 1024  # positions that have an embedding
    num_layers: int = 12
    num_heads: int = 12
    hidden_size: int = 768
    dropout: float = 0.0
    tie_embeddings: bool = True  # one matrix reads tokens and writes them (arXiv:1608.05859)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "max_length", "num_layers", "num_heads", "hidden_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 1 is needed.")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} does not divide into {self.num_heads} heads; "
                f"choose a multiple of {self.num_heads}."
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it is a probability, from 0 to below 1.")

    @classmethod
    def tiny(cls, **changes: object) -> GPTConfig:
        """A byte-level model of 0.8 million parameters, quick on a laptop; ``changes`` replace its fields."""
        defaults = {"vocab_size": 256, "max_length": 128, "num_layers": 4, "num_heads": 4, "hidden_size": 128}
        return cls(**(defaults | changes))

    @property
    def parameters(self) -> int:
        """The number of parameters, by formula: each block has 12 h² + 13 h.

        Attention holds four h x h matrices and their biases (4 h² + 4 h), the MLP h x 4h and 4h x h
        (8 h² + 5 h), the two norms 4 h.
        """
        h, V = self.hidden_size, self.vocab_size
        embeddings = (V + self.max_length) * h + (0 if self.tie_embeddings else V * h)
        return embeddings + self.num_layers * (12 * h**2 + 13 * h) + 2 * h


class Embedding(nn.Module):
    """What a token is plus where it stands: ``(batch, seq)`` integers to ``(batch, seq, hidden)``."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_length, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        check_length(tokens, positions, self.positions.num_embeddings)
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.tokens(tokens) + self.positions(positions))  # (batch, seq, hidden)


class CausalCore(nn.Module):
    """Attention without weights, a module of its own so that it can be recomputed or replaced by itself.

    Query, key and value, and the result: ``(batch, heads, seq, size)``. Causal, or with a mask that is true where a
    query may look at a key.
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, dropout_p=self.dropout if self.training else 0.0
        )


class Attention(nn.Module):
    """Self-attention. It counts heads from the width of the query, so it works on a share of them."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        h = config.hidden_size
        self.head_size = h // config.num_heads
        self.query = nn.Linear(h, h)
        self.key = nn.Linear(h, h)
        self.value = nn.Linear(h, h)
        self.core = CausalCore(config.dropout)
        self.output = nn.Linear(h, h)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, attend: Callable[..., Tensor] | None = None
    ) -> Tensor:
        """``attend`` is a cache's and takes the core's place."""
        q, k, v = (self._split_heads(project(x)) for project in (self.query, self.key, self.value))
        attended = (attend or self.core)(q, k, v, *(() if mask is None else (mask,)))
        y = attended.transpose(1, 2).flatten(2)  # (batch, seq, heads * size)
        return self.dropout(self.output(y))  # (batch, seq, hidden)

    def _split_heads(self, x: Tensor) -> Tensor:
        heads = x.shape[-1] // self.head_size  # a rank may have none
        return x.unflatten(-1, (heads, self.head_size)).transpose(1, 2)  # (batch, heads, seq, size)


class MLP(nn.Module):
    """Four times wider, GELU (arXiv:1606.08415), and back."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.down = nn.Linear(4 * config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(F.gelu(self.up(x), approximate="tanh")))


class Block(nn.Module):
    """One layer, the norms inside the residual branches (pre-norm, arXiv:2002.04745)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.hidden_size)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.hidden_size)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, **options: Any) -> Tensor:  # (batch, seq, hidden) in and out
        x = x + self.attention(self.norm_1(x), **options)
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """Tokens ``(batch, seq)`` to the logits of the token after each, ``(batch, seq, vocab)``.

    A chain of four parts (``embedding``, ``blocks``, ``norm``, ``head``): a pipeline cuts it between them, FSDP
    and recomputation wrap single ``blocks``. With a ``cache``, ``tokens`` are those that follow what the cache holds.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.head.weight = self.embedding.tokens.weight
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        # Every block adds twice to the residual stream; GPT-2 keeps the sum's variance independent of the depth.
        std = 0.02 / math.sqrt(2 * self.config.num_layers)
        for block in self.blocks:
            nn.init.normal_(block.attention.output.weight, std=std)
            nn.init.normal_(block.mlp.down.weight, std=std)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        positions = None if cache is None else cache.extend(tokens)
        x = self.embedding(tokens) if positions is None else self.embedding(tokens, positions)
        options = layer_options(len(self.blocks), tokens, mask, None, cache)
        for block, its_options in zip(self.blocks, options, strict=True):
            x = block(x, **its_options)
        return self.head(self.norm(x))  # (batch, seq, vocab)
