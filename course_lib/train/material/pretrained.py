"""A model that starts from pretrained weights: without values at first, so that each rank reads only its own part."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import cache

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from course_lib.data.denoising import WORD_PIECES
from course_lib.models.bert import Bert, BertClassifier, BertPooler, _initialise
from course_lib.models.masked_words import BertMaskedWords
from course_lib.models.pretrained.bart import BART
from course_lib.models.pretrained.bert import BERT
from course_lib.models.pretrained.deepseek import DEEPSEEK
from course_lib.models.pretrained.family import Family, Pretrained, fill
from course_lib.models.pretrained.folder import Folder, Part
from course_lib.models.pretrained.gpt2 import GPT2
from course_lib.models.pretrained.llama import LLAMA
from course_lib.models.pretrained.minilm import checked_minilm_folder
from course_lib.models.pretrained.mixtral import MIXTRAL
from course_lib.models.pretrained.tokenizer import tokenizer_of
from course_lib.train.material.samples import BYTES, CLASSES

MINILM = "minilm"  # the name of the installed package's weights
FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "bart": BART,
    "gpt": GPT2,
    "llama": LLAMA,
    "mixtral": MIXTRAL,
    "deepseek": DEEPSEEK,
}
HEAD = "cls.predictions"  # of masked words; a published BERT may have it
Read = Callable[[str, Part], Tensor]


class Weights:
    """Pretrained weights that a job starts from.

    Args:
        source: a folder, a name on the hub, or ``minilm``.

    Attributes:
        model: a key of ``FAMILIES``.

    Raises:
        ValueError: there are none, or no model of the course holds them.
    """

    def __init__(self, source: str) -> None:
        self.folder = Folder(checked_minilm_folder() if source == MINILM else source)
        self.model = next((name for name, family in FAMILIES.items() if self.folder.kind in family.kinds), "")
        if not self.model:
            kinds = ", ".join(kind for family in FAMILIES.values() for kind in family.kinds)
            raise ValueError(f"{source} has model_type {self.folder.kind!r}; supported are {kinds}")
        self.pretrained = Pretrained(self.folder, FAMILIES[self.model])
        self.pretrained.check(self.pretrained.make_model())

    def make_model(self, task: str) -> nn.Module:
        """Without values but for what is new, such as a classifier. Without dropout: any plan has the same losses."""
        config = self.pretrained.family.config(self.folder)
        config, pooler = config if isinstance(config, tuple) else (config, False)
        off = {one.name: 0.0 for one in fields(config) if "drop" in one.name}
        config = replace(config, **off)
        with torch.device("meta"):
            bare = Bert(config, pooler and task != "words") if self.model == "bert" else None
            model = self.pretrained.family.model(config) if bare is None else bare
        _mark(model)
        return model if bare is None else self._with_head(bare, task)

    def _with_head(self, bert: Bert, task: str) -> nn.Module:
        if task == "words":
            known = f"{HEAD}.transform.dense.weight" in self.folder.files
            with torch.device("meta") if known else nullcontext():
                model = BertMaskedWords(bert)
            if known:
                _mark(model.cls, "cls.")
            return model
        if bert.pooler is None:
            bert.pooler = BertPooler(bert.config).apply(_initialise)
        return BertClassifier(bert, CLASSES[task])

    def reader(self, model: nn.Module) -> Read:
        """Reads a part of a parameter of ``model``, by the name that it has there after all was added."""
        named = model.named_parameters(remove_duplicate=False)
        known = {name: p.pretrained_name for name, p in named if hasattr(p, "pretrained_name")}
        return lambda name, part: self.pretrained.read(
            known.get(name, name), part
        )  # a buffer has its own name

    def fill_tokens(self, model: nn.Module) -> None:
        """Read the embeddings of all tokens, for what is made of some of them."""
        words = {p for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
        whole = {p: [(0, n) for n in p.shape] for p in words}
        fill([model], lambda _, p: self.pretrained.read(p.pretrained_name, whole[p]), chosen=words)

    def tokenizer(self) -> Tokenizer | None:
        """That of a language model; None: its tokens are bytes.

        Raises:
            ValueError: there is none, and its tokens are no bytes either.
        """
        found = tokenizer_of(self.folder)
        if found is None and self.folder.settings["vocab_size"] != BYTES:
            raise ValueError(
                f"{self.folder.path} holds no tokenizer.json, with which text becomes its tokens"
            )
        return found

    def check_words(self, task: str) -> None:
        """Raise a ValueError if the samples of a task are not in this model's tokens."""
        if task == "language":
            self.tokenizer()
        elif (words := self.folder.settings["vocab_size"]) != WORD_PIECES.words:
            raise ValueError(
                f"{self.folder.path} has {words:,} tokens; this task is written in the {WORD_PIECES.words:,} of "
                "bert-base-uncased"
            )


@cache
def open_weights(source: str) -> Weights:
    """Opened once in each process."""
    return Weights(source)


def _mark(model: nn.Module, prefix: str = "") -> None:
    """Note in each parameter what it is called in the files' family: it keeps that when modules are put around it."""
    for name, p in model.named_parameters():
        if not hasattr(p, "pretrained_name"):
            p.pretrained_name = prefix + name
