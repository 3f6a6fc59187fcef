"""LLaMA and its heirs Qwen2 and Qwen3: the names of parameters are Hugging Face's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.pretrained.family import Family, Pretrained, Source, known_settings
from course_lib.models.pretrained.folder import Folder
from course_lib.models.pretrained.tokenizer import tokenizer_of
from course_lib.models.rope_scaling import KINDS, RopeScaling

# What transformers takes where a config.json says nothing.
DEFAULTS = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6}
# A setting of RoPE by its name in a config.json; the others are called the same.
ROPE = {
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "truncate",
    "attention_factor",
}
NO_SCALING = {"rope_theta", "rope_type", "type", "original_max_position_embeddings", "partial_rotary_factor"}


def config_of(folder: Folder) -> LlamaConfig:
    settings = DEFAULTS | folder.settings
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    known = known_settings(LlamaConfig, settings) | LLAMA.kinds[folder.kind]
    for name in ("rope_theta", "partial_rotary_factor"):
        known |= {name: rope[name]} if name in rope else {}
    known["rope_scaling"] = scaling_of(rope, settings["max_position_embeddings"])
    return LlamaConfig(**known)


def scaling_of(rope: Mapping[str, Any], positions: int) -> RopeScaling | None:
    """What ``rope_parameters``, or in older files ``rope_scaling``, says of longer texts.

    Raises:
        ValueError: a kind, or a setting of it, that is not known.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    given = {name: value for name, value in rope.items() if value is not None and name not in NO_SCALING}
    if kind == "default":
        return None
    if kind not in KINDS or (given.keys() - ROPE):
        what = f"the kind {kind!r}" if kind not in KINDS else ", ".join(sorted(given.keys() - ROPE))
        raise ValueError(
            f"RoPE scaling has {what}; supported are {', '.join(KINDS)} with {', '.join(sorted(ROPE))}."
        )
    length = rope.get("original_max_position_embeddings") if kind != "dynamic" else None
    return RopeScaling(kind, original_length=length or positions, **given)


def sources(name: str) -> list[Source]:
    """One matrix of tokens and logits may stand under either name; a bare model has no ``model.``."""
    names = [name]
    if name in ("lm_head.weight", "model.embed_tokens.weight"):
        names = [name, "model.embed_tokens.weight", "embed_tokens.weight", "lm_head.weight"]
    return [Source(one) for one in [*names, name.removeprefix("model.")]]


LLAMA = Family(
    kinds={"llama": {}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True}},
    computes={
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "use_sliding_window": False,
    },
    config=config_of,
    model=Llama,
    sources=sources,
    unread=lambda name: name.endswith("rotary_emb.inv_freq"),
)


def load_llama(source: str | Path, dtype: torch.dtype = torch.float32) -> tuple[Llama, Tokenizer | None]:
    """A LLaMA, Qwen2 or Qwen3, in evaluation mode, and its tokenizer; None: the folder has no ``tokenizer.json``.

    Args:
        source: a folder or a name on the hub (``Folder``).
        dtype: of the parameters, whatever the files hold.

    Raises:
        ValueError: it is neither, or is no model that this course's class can hold.
    """
    pretrained = Pretrained(source, LLAMA)
    return pretrained.load(dtype), tokenizer_of(pretrained.folder)
