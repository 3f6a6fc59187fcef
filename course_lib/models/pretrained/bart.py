"""BART: the names of parameters are Hugging Face's; its one matrix of tokens may stand under any of its names."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from course_lib.models.bart import Bart, BartConfig
from course_lib.models.pretrained.family import Family, Pretrained, Source, known_settings
from course_lib.models.pretrained.folder import Folder
from course_lib.models.pretrained.tokenizer import load_tokenizer

LOGITS_BIAS = "final_logits_bias"
SHARED = "model.shared.weight"
TIED = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")


def config_of(folder: Folder) -> BartConfig:
    """The row that is added to the logits is there where it is not zero: a pipeline has no place for it."""
    biased = LOGITS_BIAS in folder.files and bool(
        folder.read(LOGITS_BIAS, [(0, n) for n in folder.shape(LOGITS_BIAS)]).any()
    )
    return BartConfig(**known_settings(BartConfig, folder.settings) | {LOGITS_BIAS: biased})


def sources(name: str) -> list[Source]:
    names = [SHARED, *TIED] if name in (SHARED, *TIED) else [name]
    return [Source(one) for one in [*names, *(one.removeprefix("model.") for one in names)]]


BART = Family(
    kinds={"bart": {}},
    computes={
        "activation_function": "gelu",
        "tie_word_embeddings": True,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "normalize_before": False,
        "normalize_embedding": True,
        "add_final_layer_norm": False,
        "static_position_embeddings": False,
    },
    config=config_of,
    model=Bart,
    sources=sources,
    unread=lambda name: name == LOGITS_BIAS,
)


def load_bart(source: str | Path) -> tuple[Bart, Tokenizer]:
    """A BART, in evaluation mode, and its tokenizer: from a folder or the hub (``"facebook/bart-base"``).

    A file may hold the one matrix of tokens and logits under one of its names alone, and without ``model.``.

    Raises:
        ValueError: it is neither, or is no BART that this course's class can hold.
    """
    pretrained = Pretrained(source, BART)
    return pretrained.load(), load_tokenizer(pretrained.folder.path)
