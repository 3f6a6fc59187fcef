"""Mixtral: attention and ends are named as a LLaMA's, and an MLP with experts is called ``block_sparse_moe``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from course_lib.models.mixtral import Mixtral, MixtralConfig
from course_lib.models.pretrained import llama
from course_lib.models.pretrained.family import Family, Pretrained, Source, known_settings
from course_lib.models.pretrained.folder import Folder
from course_lib.models.pretrained.tokenizer import tokenizer_of

# What transformers takes where a config.json says nothing.
DEFAULTS = {"max_position_embeddings": 4096 * 32, "rope_theta": 1e6}


def config_of(folder: Folder) -> MixtralConfig:
    settings: dict[str, Any] = DEFAULTS | folder.settings
    known = known_settings(MixtralConfig, settings)
    return MixtralConfig(**known | {"rope_theta": theta_of(folder, settings["rope_theta"])})


def theta_of(folder: Folder, default: float) -> float:
    """The base of RoPE's angles.

    Raises:
        ValueError: RoPE is scaled for longer texts.
    """
    settings = folder.settings
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if (kind := rope.get("rope_type", rope.get("type", "default"))) != "default":
        name = settings["model_type"]
        raise ValueError(f"{folder.path} has RoPE scaling {kind!r}; of a {name} only none is supported.")
    return rope.get("rope_theta", settings.get("rope_theta", default))


def sources(name: str) -> list[Source]:
    return llama.sources(name.replace(".mlp.", ".block_sparse_moe."))


def stacked(name: str) -> tuple[str, ...]:
    """The gate is ``w1``, the up projection ``w3``, the way back ``w2``."""
    layer, _, kind = name.rpartition(".mlp.experts.")
    each = {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)}.get(kind, ())
    return tuple(f"{layer}.block_sparse_moe.experts.*.{one}.weight" for one in each)


MIXTRAL = Family(
    kinds={"mixtral": {}},
    computes={"hidden_act": "silu", "sliding_window": None, "router_jitter_noise": 0.0},
    config=config_of,
    model=Mixtral,
    sources=sources,
    unread=llama.LLAMA.unread,
    stacked=stacked,
)


def load_mixtral(source: str | Path, dtype: torch.dtype = torch.float32) -> tuple[Mixtral, Tokenizer | None]:
    """A Mixtral in evaluation mode, and its tokenizer; None: the folder has no ``tokenizer.json``.

    Args:
        source: a folder or a name on the hub (``Folder``).
        dtype: of the parameters, whatever the files hold.

    Raises:
        ValueError: it is neither, or is no model that this course's class can hold.
    """
    pretrained = Pretrained(source, MIXTRAL)
    return pretrained.load(dtype), tokenizer_of(pretrained.folder)
