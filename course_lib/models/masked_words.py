"""BERT's own task (arXiv:1810.04805, section 3.1): which words stood in the places that are masked?

Module and parameter names are those of Hugging Face's ``BertForMaskedLM``, but for ``cls.predictions.bias``: there it
is a second name of ``cls.predictions.decoder.bias``.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.models.bert import Bert, BertConfig, _initialise


class BertTransform(nn.Module):
    """The head's own layer: ``(batch, seq, hidden)`` in and out."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.LayerNorm(F.gelu(self.dense(x)))


class BertPredictions(nn.Module):
    """Hidden states to the logits of all words, ``(batch, seq, vocab)``."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = BertTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.transform(x))


class BertMaskedWords(nn.Module):
    """A BERT without pooler, and a head that shares the matrix of its word embeddings (arXiv:1608.05859)."""

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        if bert.pooler is not None:
            raise ValueError("this Bert has a pooler, which no masked word needs: make it with pooler=False.")
        self.bert = bert
        self.cls = nn.ModuleDict({"predictions": BertPredictions(bert.config)})
        self.cls.apply(_initialise)
        self.cls["predictions"].decoder.weight = bert.embeddings.word_embeddings.weight

    def forward(
        self, tokens: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        return self.cls["predictions"](self.bert(tokens, mask, token_types))
