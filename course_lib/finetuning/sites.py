"""Where each family of models is adapted: names of its submodules, and nothing that a technique does there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.finetuning.freeze import ParameterCount, mark_only_as_trainable, parameters_called
from course_lib.models.bart import Bart
from course_lib.models.bert import Bert, BertClassifier
from course_lib.models.gpt import GPT
from course_lib.models.llama import LlamaModel
from course_lib.models.names import find_modules


@dataclass(frozen=True)
class Sites:
    """Names below the root, which is the module that takes tokens. A ``*`` stands for every layer."""

    tokens: str  # the embedding of tokens: (batch, seq) to (batch, seq, hidden)
    positions: str  # what gives positions: a learned embedding, or each layer's rotation
    attention: str  # each layer's attention; its ``core`` is attention without weights
    key: str  # the attention's linear layer that makes keys
    sublayers: tuple[str, ...]  # their outputs are what attention and MLP add to the residual, the MLP's last
    norms: tuple[str, ...]  # each layer's norms, the one after (or before) the MLP last
    post_norm: bool  # norms stand after the residual is added
    causal: bool  # without a mask a token sees no later one
    most: Callable[[nn.Module], int]  # positions that the model has


FAMILIES: dict[type[nn.Module], Sites] = {
    Bert: Sites(
        tokens="embeddings.word_embeddings",
        positions="embeddings.position_embeddings",
        attention="encoder.layer.*.attention.self",
        key="key",
        sublayers=("encoder.layer.*.attention.output.dropout", "encoder.layer.*.output.dropout"),
        norms=("encoder.layer.*.attention.output.LayerNorm", "encoder.layer.*.output.LayerNorm"),
        post_norm=True,
        causal=False,
        most=lambda bert: bert.config.max_position_embeddings,
    ),
    GPT: Sites(
        tokens="embedding.tokens",
        positions="embedding.positions",
        attention="blocks.*.attention",
        key="key",
        sublayers=("blocks.*.attention.dropout", "blocks.*.mlp.dropout"),
        norms=("blocks.*.norm_1", "blocks.*.norm_2"),
        post_norm=False,
        causal=True,
        most=lambda gpt: gpt.config.max_length,
    ),
    LlamaModel: Sites(
        tokens="embed_tokens",
        positions="layers.*.self_attn.rotary",
        attention="layers.*.self_attn",
        key="k_proj",
        sublayers=("layers.*.self_attn", "layers.*.mlp"),
        norms=("layers.*.input_layernorm", "layers.*.post_attention_layernorm"),
        post_norm=False,
        causal=True,
        most=lambda llama: llama.max_length,
    ),
    Bart: Sites(
        tokens="model.shared",
        positions="model.*.embed_positions",
        attention="model.*.layers.*.*_attn",
        key="k_proj",
        sublayers=(
            "model.*.layers.*.self_attn_dropout",
            "model.decoder.layers.*.encoder_attn_dropout",
            "model.*.layers.*.final_dropout",
        ),
        norms=(
            "model.*.layers.*.self_attn_layer_norm",
            "model.decoder.layers.*.encoder_attn_layer_norm",
            "model.*.layers.*.final_layer_norm",
        ),
        post_norm=True,
        causal=False,
        most=lambda bart: bart.config.max_position_embeddings,
    ),
}


def root_of(
    model: nn.Module, families: Mapping[type[nn.Module], Sites] = FAMILIES
) -> tuple[nn.Module, Sites]:
    """The module in ``model`` that takes tokens, and its table.

    Raises:
        ValueError: the model belongs to no family of the table.
    """
    for module in model.modules():
        for family, sites in families.items():
            if isinstance(module, family):
                return module, sites
    known = ", ".join(family.__name__ for family in families)
    raise ValueError(f"this {type(model).__name__} holds none of {known}, which can be adapted.")


def at(root: nn.Module, pattern: str) -> list[nn.Module]:
    """The modules of all layers that ``pattern`` names, in order."""
    return list(find_modules(root, pattern).values())


def in_layers(root: nn.Module, pattern: str) -> list[tuple[nn.Module, nn.Module]]:
    """The same, each with the layer that it is in: the module of the last ``*``."""
    below = pattern.rpartition("*")[2].count(".")
    return [
        (root.get_submodule(name.rsplit(".", below)[0]), module)
        for name, module in find_modules(root, pattern).items()
    ]


def add_once(root: nn.Module, name: str, module: nn.Module) -> None:
    """Make ``module`` a child of ``root``, on its device, in its dtype and mode (training or evaluation).

    Raises:
        ValueError: it has a child of this name already.
    """
    if hasattr(root, name):
        raise ValueError(
            f"this {type(root).__name__} already has the module {name!r}; start from a plain model."
        )
    like = next(root.parameters())
    root.add_module(name, beside(module, like).train(root.training))


def beside(module: nn.Module, like: Tensor) -> nn.Module:
    """``module`` on the device of ``like``, in its dtype. Where ``like`` has no values yet, it keeps its own."""
    return module.to(device=device_beside(like), dtype=like.dtype)


def device_beside(like: Tensor) -> torch.device | None:
    """Where something new is made that belongs to ``like``; None: PyTorch's own choice, for it has values."""
    return None if like.is_meta else like.device


def train_only(
    model: nn.Module, added: Iterable[nn.Module | nn.Parameter], also: Iterable[str] | None = None
) -> ParameterCount:
    """Freeze all but what was added and what ``also`` names (None: a ``BertClassifier``'s new classifier)."""
    if also is None:
        also = ["classifier"] if isinstance(model, BertClassifier) else []
    chosen = {p for x in added for p in ([x] if isinstance(x, nn.Parameter) else x.parameters())}
    chosen |= {p for pattern in also for p in parameters_called(model, pattern)}
    return mark_only_as_trainable(model, lambda _, p: p in chosen)


def arguments_of(root: nn.Module, args: tuple, kwargs: dict[str, Any], n: int) -> dict[str, Any]:
    """A call's arguments by name, after a check that ``n`` virtual tokens and the text have positions."""
    call = bound(type(root), args, kwargs)
    if call.get("cache") is not None:
        raise ValueError(
            f"this model has {n} virtual tokens, which no cache holds; generate with use_cache=False."
        )
    check_positions(root, n, call["tokens"].shape[1])
    return call


def bound(kind: type[nn.Module], args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, for the forward of the class: recomputation replaces the instance's."""
    call = dict(inspect.signature(kind.forward).bind(None, *args, **kwargs).arguments)
    del call["self"]
    return call


def check_positions(root: nn.Module, n: int, seq: int) -> None:
    """Refuse a number of virtual tokens that is not positive, or needs more positions than the model has."""
    if n < 1:
        raise ValueError(f"{n} virtual tokens; at least 1 is needed.")
    most = root_of(root)[1].most(root)
    if n + seq > most:
        raise ValueError(
            f"{n} virtual tokens and {seq} of text are {n + seq}; this model has {most} positions."
        )
