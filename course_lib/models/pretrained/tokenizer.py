"""The tokenizer that lies beside the weights."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from course_lib.models.pretrained.folder import Folder
from course_lib.models.pretrained.minilm import minilm_folder


def load_tokenizer(folder: Path | None = None) -> Tokenizer:
    """The tokenizer in ``folder`` (MiniLM's without one), neither padding nor truncating."""
    file = (folder or minilm_folder()) / "tokenizer.json"
    if not file.is_file():
        raise ValueError(f"{file.parent} holds no tokenizer.json; pretrained weights have it beside them.")
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def tokenizer_of(folder: Folder) -> Tokenizer | None:
    """That of a folder which may have none."""
    return load_tokenizer(folder.path) if (folder.path / "tokenizer.json").is_file() else None
