"""GPT-2, whose files keep query, key and value side by side, and every matrix as ``(in, out)``."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.pretrained.family import Family, Pretrained, Source
from course_lib.models.pretrained.folder import Folder
from course_lib.models.pretrained.tokenizer import tokenizer_of

OUTSIDE = {"embedding.tokens": "wte", "embedding.positions": "wpe", "norm": "ln_f", "head": "wte"}
QKV = ("query", "key", "value")
IN_BLOCK = {
    "norm_1": "ln_1",
    "norm_2": "ln_2",
    "attention.output": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
} | dict.fromkeys((f"attention.{name}" for name in QKV), "attn.c_attn")
PREFIX = "transformer."  # the first published GPT-2 has none


def config_of(folder: Folder) -> GPTConfig:
    s = folder.settings
    dropouts = {s.get(name, 0.1) for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")}
    if len(dropouts) > 1:
        raise ValueError(f"{folder.path} has dropouts {sorted(dropouts)}; only one for all is supported.")
    if s.get("n_inner") not in (None, 4 * s["n_embd"]):
        raise ValueError(f"{folder.path} has n_inner {s['n_inner']}; only 4 x {s['n_embd']} is supported.")
    return GPTConfig(
        vocab_size=s["vocab_size"],
        max_length=s["n_positions"],
        num_layers=s["n_layer"],
        num_heads=s["n_head"],
        hidden_size=s["n_embd"],
        dropout=dropouts.pop(),
        tie_embeddings=s.get("tie_word_embeddings", True),
    )


def sources(name: str) -> list[Source]:
    module, _, attribute = name.rpartition(".")
    untied = [Source("lm_head.weight")] if module == "head" else []
    if module in OUTSIDE:
        there = Source(f"{OUTSIDE[module]}.{attribute}")
    else:
        _, layer, inner = module.split(".", 2)
        matrix, kind = "norm" not in inner, inner.rpartition(".")[2]
        number, of = (QKV.index(kind), 3) if kind in QKV else (0, 1)
        there = Source(f"h.{layer}.{IN_BLOCK[inner]}.{attribute}", matrix, number, of)
    return [*untied, there._replace(name=PREFIX + there.name), there]


GPT2 = Family(
    kinds={"gpt2": {}},
    computes={
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    config=config_of,
    model=GPT,
    sources=sources,
    unread=lambda name: name.endswith(("attn.bias", "attn.masked_bias")) or name == "lm_head.weight",
)


def load_gpt2(source: str | Path, dtype: torch.dtype = torch.float32) -> tuple[GPT, Tokenizer | None]:
    """A GPT-2, in evaluation mode, and its tokenizer; None: the folder has no ``tokenizer.json``.

    Args:
        source: a folder or a name on the hub (``Folder``).
        dtype: of the parameters, whatever the files hold.

    Raises:
        ValueError: it is neither, or is no model that this course's class can hold.
    """
    pretrained = Pretrained(source, GPT2)
    return pretrained.load(dtype), tokenizer_of(pretrained.folder)
