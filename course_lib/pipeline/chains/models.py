"""BERT, and the causal models, as chains of parts; BART: ``bart.py``.

Each part is called with what the part before it returned. A mask goes along from stage to stage behind the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from course_lib.models.anatomy import Anatomy
from course_lib.models.bart import Bart
from course_lib.models.bert import Bert, BertClassifier
from course_lib.models.masked_words import BertMaskedWords
from course_lib.models.masks import check_mask
from course_lib.pipeline.chains.bart import bart_chain

# A call may say what comes behind one of the layers: ``beside``, {its number: {name of a part: call}}.
Call = Callable[..., Any]  # (module, *tensors) -> a tensor or a tuple of tensors
Chain = Sequence[str] | Mapping[str, Call]


def plainly(module: nn.Module, *tensors: Tensor) -> Any:
    return module(*tensors)


def bert_embeddings(
    embeddings: nn.Module, tokens: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
) -> Any:
    """The mask goes along from stage to stage, in the form in which the layers take it: ``(batch, 1, 1, seq)``."""
    x = embeddings(tokens, token_types)
    return x if mask is None else (x, mask[:, None, None, :].bool())


def bert_layer(layer: nn.Module, x: Tensor, *mask: Tensor) -> tuple[Tensor, ...]:
    return layer(x, *mask), *mask


def bert_pooler(pooler: nn.Module | None, x: Tensor, *mask: Tensor) -> Any:
    return x if pooler is None else (x, pooler(x))


def text_embedding(embedding: nn.Module, tokens: Tensor, mask: Tensor | None = None) -> Any:
    """The mask goes along as it is: one for each sequence, ``(batch, 1, seq, seq)``."""
    if mask is None:
        return embedding(tokens)
    check_mask(mask, tokens.shape[1], tokens.shape[1])
    return embedding(tokens), mask


def text_layer(layer: nn.Module, x: Tensor, *mask: Tensor) -> tuple[Tensor, ...]:
    return layer(x, **({"mask": mask[0]} if mask else {})), *mask


def without_mask(module: nn.Module, x: Tensor, *mask: Tensor) -> Tensor:
    return module(x)


def text_chain(anatomy: Anatomy) -> dict[str, Call] | None:
    """That of a causal model (GPT, LLaMA, Falcon); None for another."""
    calls = {"layer": text_layer, "final norm": without_mask, "head": plainly}
    if not anatomy.causal or not anatomy.names("head"):
        return None
    [embedding, *_] = anatomy.names("embedding", "tokens")
    return {embedding: text_embedding} | {n: calls[r] for n, r in anatomy.roles.items() if r in calls}


CHAINS: dict[type[nn.Module], Chain | Callable[[Any], Chain]] = {
    Bert: {"embeddings": bert_embeddings, "encoder.layer.*": bert_layer, "pooler": bert_pooler},
    BertClassifier: {
        "bert.embeddings": bert_embeddings,
        "bert.encoder.layer.*": bert_layer,
        "bert.pooler": without_mask,
        "dropout": plainly,
        "classifier": plainly,
    },
    BertMaskedWords: {
        "bert.embeddings": bert_embeddings,
        "bert.encoder.layer.*": bert_layer,
        "cls.predictions": without_mask,
    },
    Bart: bart_chain,
    nn.Sequential: ("*",),
}
