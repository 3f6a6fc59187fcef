"""The layers of BART as blocks: an encoder like BERT, and a decoder that reads its result, the memory."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from course_lib.models.bart import BartDecoder, BartDecoderLayer, BartEncoder, BartEncoderLayer
from course_lib.models.kv_cache import Cache
from course_lib.tensor_parallel.galaxy_family import Family, Moves
from simulator.inputs.galaxy import Shares


def bart_encoder_layer(
    layer: BartEncoderLayer, moves: Moves, x: Tensor, mask: Tensor | None = None
) -> Tensor:
    return _bart_mlp(layer, moves, "connection_1", _bart_self_attention(layer, moves, x, mask))


def bart_decoder_layer(
    layer: BartDecoderLayer,
    moves: Moves,
    x: Tensor,
    memory: Tensor,
    memory_mask: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    for_attention, residual = moves("connection_1", _bart_self_attention(layer, moves, x, mask))
    y = layer.encoder_attn_dropout(layer.encoder_attn(for_attention, memory, memory_mask))
    return _bart_mlp(layer, moves, "cross_connection", layer.encoder_attn_layer_norm(residual + y))


def _bart_self_attention(layer: BartEncoderLayer, moves: Moves, x: Tensor, mask: Tensor | None) -> Tensor:
    for_attention, residual = moves("input", x)
    y = layer.self_attn_dropout(layer.self_attn(for_attention, None, mask))
    return layer.self_attn_layer_norm(residual + y)


def _bart_mlp(layer: BartEncoderLayer, moves: Moves, block: str, x: Tensor) -> Tensor:
    for_mlp, residual = moves(block, x)
    y = layer.fc2(layer.activation_dropout(F.gelu(layer.fc1(for_mlp))))
    return layer.final_layer_norm(residual + layer.final_dropout(y))


def bart_encoder(
    encoder: BartEncoder,
    shares: Shares,
    end: Callable[..., Tensor],
    tokens: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    lengths, x = shares.tokens(tokens.shape[1]), encoder.embed(tokens)
    for layer in encoder.layers:
        x = layer(x, mask, lengths=lengths)
    return end(x)  # the whole memory, once for all layers of the decoder


def bart_decoder(
    decoder: BartDecoder,
    shares: Shares,
    end: Callable[..., Tensor],
    tokens: Tensor,
    memory: Tensor,
    memory_mask: Tensor | None = None,
    mask: Tensor | None = None,
    cache: Cache | None = None,
) -> Tensor:
    if cache is not None:
        raise ValueError("hybrid layers train a model: they take no cache")
    lengths, x = shares.tokens(tokens.shape[1]), decoder.embed(tokens)
    for layer in decoder.layers:
        x = layer(x, memory, memory_mask, mask, lengths=lengths)
    return end(x)


BART_BLOCKS = {
    "self_attn": "attention",
    "self_attn_dropout": "connection_1",
    "self_attn_layer_norm": "connection_1",
    "fc1": "mlp",
    "activation_dropout": "mlp",
    "fc2": "mlp",
    "final_dropout": "connection_2",
    "final_layer_norm": "connection_2",
}
BART_EXITS = {"attention": "self_attn.out_proj", "mlp": "fc2"}
BART_ENCODER = Family(BART_BLOCKS, BART_EXITS, "encoder", bart_encoder_layer, bart_encoder, "fc1")
BART_DECODER = Family(
    blocks=BART_BLOCKS
    | {
        "encoder_attn": "cross_attention",
        "encoder_attn_dropout": "cross_connection",
        "encoder_attn_layer_norm": "cross_connection",
    },
    exits=BART_EXITS | {"cross_attention": "encoder_attn.out_proj"},
    kind="decoder",
    layer_forward=bart_decoder_layer,
    stack_forward=bart_decoder,
    entry="fc1",
)
