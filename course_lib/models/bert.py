"""BERT (arXiv:1810.04805), with Hugging Face's module and parameter names, so that published weights load.

Shapes in comments: ``batch``, ``seq``, ``hidden``, ``heads``, ``size`` (of one head: hidden / heads).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class BertConfig:
    """Named as in a Hugging Face ``config.json``. The defaults are BERT-base, uncased."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} does not divide into {self.num_attention_heads} heads; "
                f"choose a multiple of {self.num_attention_heads}."
            )

    @classmethod
    def tiny(cls, **changes: object) -> BertConfig:
        """Two narrow layers without dropout, for tests and quick runs; ``changes`` replace its fields."""
        defaults = {
            "vocab_size": 1000,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 256,
            "max_position_embeddings": 64,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        }
        return cls(**(defaults | changes))


class BertEmbeddings(nn.Module):
    """Token, position and segment, added and normalised: ``(batch, seq)`` to ``(batch, seq, hidden)``."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, tokens: Tensor, token_types: Tensor | None = None) -> Tensor:
        seq, positions = tokens.shape[1], self.position_embeddings.num_embeddings
        if seq > positions:
            raise ValueError(f"the sequence has {seq} tokens; this model has {positions} positions.")
        if token_types is None:
            token_types = torch.zeros_like(tokens)
        x = self.word_embeddings(tokens) + self.token_type_embeddings(token_types)
        x = x + self.position_embeddings(torch.arange(seq, device=tokens.device))
        return self.dropout(self.LayerNorm(x))


class BertCore(nn.Module):
    """Attention without weights, a module of its own so that it can be recomputed or replaced by itself.

    Query, key and value, and the result: ``(batch, heads, seq, size)``.
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0
        )


class BertSelfAttention(nn.Module):
    """Every token attends to every token that is no padding.

    It counts heads from the width of the query, so it works on a share of them.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        h = config.hidden_size
        self.head_size = h // config.num_attention_heads
        self.query = nn.Linear(h, h)
        self.key = nn.Linear(h, h)
        self.value = nn.Linear(h, h)
        self.core = BertCore(config.attention_probs_dropout_prob)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self._split_heads(project(x)) for project in (self.query, self.key, self.value))
        y = self.core(q, k, v, mask)
        return y.transpose(1, 2).flatten(2)  # (batch, seq, heads * size)

    def _split_heads(self, x: Tensor) -> Tensor:
        heads = x.shape[-1] // self.head_size  # a rank may have none
        return x.unflatten(-1, (heads, self.head_size)).transpose(1, 2)  # (batch, heads, seq, size)


class BertOutput(nn.Module):
    """The end of both halves of a layer: project to ``hidden``, add the residual, normalise (post-norm)."""

    def __init__(self, in_features: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(in_features, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(x)) + residual)


class BertAttention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertOutput(config.hidden_size, config)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.output(self.self(x, mask), x)


class BertIntermediate(nn.Module):
    """The MLP's first half: ``(batch, seq, hidden)`` to ``(batch, seq, intermediate)``."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.dense(x))


class BertLayer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config.intermediate_size, config)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class BertEncoder(nn.Module):
    """All layers. ``mask``: true where a key may be attended to, broadcast to (batch, heads, seq, seq)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.layer:
            x = layer(x, mask)
        return x


class BertPooler(nn.Module):
    """One vector per sequence, made from its first token: ``(batch, seq, hidden)`` to ``(batch, hidden)``."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.dense(x[:, 0]))


class Bert(nn.Module):
    """Tokens ``(batch, seq)`` to hidden states ``(batch, seq, hidden)``.

    ``mask`` ``(batch, seq)`` is 1 (or true) for a token and 0 for padding; ``token_types`` ``(batch, seq)`` names
    the segment, 0 or 1. Padding is never attended to; what stands at its own positions has no meaning.

    With ``pooler=True`` the result is ``(hidden states, pooled)``, the second ``(batch, hidden)``.
    """

    def __init__(self, config: BertConfig, pooler: bool = False) -> None:
        super().__init__()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config) if pooler else None
        self.apply(_initialise)

    def forward(
        self, tokens: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        keys = None if mask is None else mask[:, None, None, :].bool()  # (batch, 1, 1, seq)
        x = self.encoder(self.embeddings(tokens, token_types), keys)
        return x if self.pooler is None else (x, self.pooler(x))


class BertClassifier(nn.Module):
    """BERT, its pooler and a linear layer: ``(batch, seq)`` tokens to ``(batch, num_classes)`` logits."""

    def __init__(self, bert: Bert, num_classes: int) -> None:
        super().__init__()
        if bert.pooler is None:
            raise ValueError("this Bert has no pooler; a classifier needs one made with pooler=True.")
        if num_classes < 1:
            raise ValueError(f"num_classes is {num_classes}; a classifier needs at least 1.")
        self.bert = bert
        self.dropout = nn.Dropout(bert.config.hidden_dropout_prob)
        self.classifier = nn.Linear(bert.config.hidden_size, num_classes)
        _initialise(self.classifier)

    def forward(
        self, tokens: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        _, pooled = self.bert(tokens, mask, token_types)
        return self.classifier(self.dropout(pooled))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
