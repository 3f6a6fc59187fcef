"""BERT: the names of parameters are Hugging Face's, with some wrapping and some of an older age."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from course_lib.models.bert import Bert, BertConfig
from course_lib.models.pretrained.family import Family, Pretrained, Source, known_settings
from course_lib.models.pretrained.folder import Folder
from course_lib.models.pretrained.minilm import checked_minilm_folder
from course_lib.models.pretrained.tokenizer import load_tokenizer

POOLER = "pooler.dense.weight"
PARTS = ("embeddings.", "encoder.", "pooler.")  # beside them a file may hold the heads of its model's task


def config_of(folder: Folder) -> tuple[BertConfig, bool]:
    pooler = not {POOLER, f"bert.{POOLER}"}.isdisjoint(folder.files)
    return BertConfig(**known_settings(BertConfig, folder.settings)), pooler


def sources(name: str) -> list[Source]:
    """With ``bert.`` where the model was saved with its task, and TensorFlow's names of norms in the first BERTs."""
    name = name.replace("predictions.decoder.bias", "predictions.bias")
    old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    return [Source(prefix + one) for prefix in ("", "bert.") for one in (name, old)]


def unread(name: str) -> bool:
    return not name.removeprefix("bert.").startswith(PARTS) or name.endswith("position_ids")


BERT = Family(
    kinds={"bert": {}},
    computes={"hidden_act": "gelu", "position_embedding_type": "absolute"},
    config=config_of,
    model=lambda config: Bert(*config),
    sources=sources,
    unread=unread,
)


def load_bert(source: str | Path) -> tuple[Bert, Tokenizer]:
    """A BERT, in evaluation mode, and its tokenizer.

    Args:
        source: a folder with its ``tokenizer.json``, or a name on the hub (``Folder``).

    Raises:
        ValueError: it is neither, or is no BERT that this course's class can hold.
    """
    pretrained = Pretrained(source, BERT)
    return pretrained.load(), load_tokenizer(pretrained.folder.path)


def load_minilm() -> tuple[Bert, Tokenizer]:
    """all-MiniLM-L6-v2, a real pretrained BERT, with its tokenizer; no network is needed.

    Raises:
        ValueError: the weights are not installed, or are not the published ones.
    """
    return load_bert(checked_minilm_folder())
