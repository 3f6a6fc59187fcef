"""BART as a chain of parts, for the stages of a pipeline.

Two tensors travel from part to part: the source x and the target y, ``(batch, seq, hidden)``. Both are embedded in the
first stage. The encoder's layers change x. From then on x is the memory, and the decoder's layers change y. So stages
may be cut anywhere, and each sends the same tensors. The masks follow x and y unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.models.bart import Bart, attention_masks

Tensors = tuple[Tensor, ...]


def bart_chain(bart: Bart) -> dict[str, Callable[..., Any]]:
    """The names of the parts, and how each is called.

    Raises:
        ValueError: the model adds a row of biases to its logits, which belongs to no part.
    """
    if bart.config.final_logits_bias:
        raise ValueError(
            "a Bart with a final_logits_bias has no stages: make it with final_logits_bias=False"
        )
    scale = bart.model.encoder.scale

    def source_tokens(embed: nn.Module, p: Tensor, tokens: Tensor, *rest: Tensor) -> Tensors:
        return embed(tokens) * scale + p, *rest

    def target_tokens(embed: nn.Module, x: Tensor, p: Tensor, tokens: Tensor, *masks: Tensor) -> Tensors:
        return x, embed(tokens) * scale + p, *masks

    return {
        "model.encoder.embed_positions": source_positions,
        "model.encoder.embed_tokens": source_tokens,
        "model.encoder.layernorm_embedding": change_x,
        "model.encoder.dropout": change_x,
        "model.decoder.embed_positions": target_positions,
        "model.decoder.embed_tokens": target_tokens,
        "model.decoder.layernorm_embedding": change_y,
        "model.decoder.dropout": change_y,
        "model.encoder.layers.*": encoder_layer,
        "model.decoder.layers.*": decoder_layer,
        "lm_head": head,
    }


def source_positions(
    embed: nn.Module,
    tokens: Tensor,
    decoder_tokens: Tensor,
    mask: Tensor | None = None,
    decoder_mask: Tensor | None = None,
) -> Tensors:
    masks = [mask for mask in attention_masks(mask, decoder_mask) if mask is not None]
    return embed(torch.arange(tokens.shape[1], device=tokens.device)), tokens, decoder_tokens, *masks


def target_positions(embed: nn.Module, x: Tensor, tokens: Tensor, *masks: Tensor) -> Tensors:
    return x, embed(torch.arange(tokens.shape[1], device=tokens.device)), tokens, *masks


def change_x(module: nn.Module, x: Tensor, *rest: Tensor) -> Tensors:
    return module(x), *rest


def change_y(module: nn.Module, x: Tensor, y: Tensor, *masks: Tensor) -> Tensors:
    return x, module(y), *masks


def encoder_layer(layer: nn.Module, x: Tensor, y: Tensor, *masks: Tensor) -> Tensors:
    return layer(x, *masks[:1]), y, *masks


def decoder_layer(layer: nn.Module, x: Tensor, y: Tensor, *masks: Tensor) -> Tensors:
    return x, layer(y, x, *masks), *masks


def head(linear: nn.Module, x: Tensor, y: Tensor, *masks: Tensor) -> Tensor:
    return linear(y)
