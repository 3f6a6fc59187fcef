"""The layers of BERT and LLaMA (BART: ``galaxy_bart.py``) as blocks that can be placed one by one (``galaxy.py``).

For each family of layers: which module belongs to which block, and a forward that says where a block ends. The forward
computes what the model's own does, and between two blocks it calls ``moves(block, x)``, which returns the tensor for
each block that reads x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.models.anatomy import anatomy_of
from course_lib.models.bart import Bart
from course_lib.models.bert import Bert, BertEncoder, BertLayer
from course_lib.models.kv_cache import Cache, check_length, layer_options
from course_lib.models.llama import Llama, LlamaLayer, LlamaModel
from course_lib.models.names import matching
from course_lib.tensor_parallel.galaxy_bart import BART_DECODER, BART_ENCODER
from course_lib.tensor_parallel.galaxy_family import Family, Moves
from course_lib.tensor_parallel.tables import styles_of
from simulator.inputs.galaxy import Shares


@dataclass(frozen=True)
class Stack:
    """The layers of a model, and the module whose forward calls them one after the other.

    Attributes:
        layers: by their names in the whole model.
        heads, columns: of one layer. ``group`` query heads share one head of keys and values.
        styles: for the names of the layers' modules, how ``apply.py`` cuts them.
    """

    family: Family
    module: nn.Module
    layers: Mapping[str, nn.Module]
    heads: int
    columns: int
    group: int
    styles: Mapping[str, str]


def stacks_of(model: nn.Module) -> list[Stack]:
    """The layers of the one BERT, LLaMA or BART in ``model``; of a BART those of its encoder, and of its decoder.

    Raises:
        ValueError: there is none, or more than one.
    """
    found = [(name, module) for name, module in model.named_modules() if type(module) in STACKS]
    if len(found) != 1:
        known = ", ".join(kind.__name__ for kind in STACKS)
        raise ValueError(
            f"there are hybrid layers for {known}, and {type(model).__name__} holds {len(found)} of them"
        )
    [(prefix, inner)] = found
    return [_stack(prefix, inner, *where) for where in STACKS[type(inner)]]


def _stack(prefix: str, inner: nn.Module, path: str, family: Family, heads: str, columns: str) -> Stack:
    dot = f"{prefix}." if prefix else ""
    path, _, last = path.rpartition(".")
    module, config = inner.get_submodule(path), inner.config
    layers = {f"{dot}{path}.{last}.{i}": layer for i, layer in getattr(module, last).named_children()}
    kv_heads = getattr(config, "num_key_value_heads", None) or getattr(config, heads)
    group = getattr(config, heads) // kv_heads
    inside = [name for name, _ in inner.named_modules()]
    styles = {
        dot + pattern: style
        for pattern, style in styles_of(anatomy_of(inner)).items()
        if last in pattern.split(".") and matching(pattern, inside)
    }
    adapted = [name for name in inside if name.endswith(".adaption") and name.startswith(f"{path}.{last}.")]
    styles |= dict.fromkeys((dot + name for name in adapted), "part")
    return Stack(family, module, layers, getattr(config, heads), getattr(config, columns), group, styles)


# ---- BERT: norms after the residual sums -------------------------------------------------------------------


def bert_layer(layer: BertLayer, moves: Moves, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for_attention, residual = moves("input", x)
    # the exit of attention, layer.attention.output.dense, calls moves("attention", …)
    x = layer.attention.output(layer.attention.self(for_attention, mask), residual)
    for_mlp, residual = moves("connection_1", x)
    return layer.output(layer.intermediate(for_mlp), residual)


def bert_encoder(
    encoder: BertEncoder, shares: Shares, end: Callable[..., Tensor], x: Tensor, mask: Tensor | None = None
) -> Tensor:
    lengths = shares.tokens(x.shape[1])
    for layer in encoder.layer:
        x = layer(x, mask, lengths=lengths)
    return end(x)


BERT = Family(
    blocks={
        "attention.self": "attention",
        "attention.output": "connection_1",
        "attention.output.dense": "attention",
        "intermediate": "mlp",
        "output": "connection_2",
        "output.dense": "mlp",
    },
    exits={"attention": "attention.output.dense", "mlp": "output.dense"},
    kind="post-norm",
    layer_forward=bert_layer,
    stack_forward=bert_encoder,
    entry="intermediate.dense",
)


# ---- LLaMA: norms before attention and MLP. The first norm goes with the connection before it --------------------


def llama_layer(layer: LlamaLayer, moves: Moves, x: Tensor, **options: Any) -> Tensor:
    for_norm, residual = moves("input", x)
    for_attention = moves("norm_1", layer.input_layernorm(for_norm))
    if moves.placed["attention"] == "sequence":  # RoPE must know where this rank's tokens stand
        start, length = moves.own_range()
        options["positions"] = torch.arange(start, start + length, device=x.device)
    x = layer.self_attn(for_attention, **options) + residual
    for_norm, residual = moves("connection_1", x)
    for_mlp = moves("norm_2", layer.post_attention_layernorm(for_norm))
    return layer.mlp(for_mlp) + residual


def llama_model(
    model: LlamaModel,
    shares: Shares,
    end: Callable[..., Tensor],
    tokens: Tensor,
    mask: Tensor | None = None,
    cache: Cache | None = None,
) -> Tensor:
    if cache is not None:
        raise ValueError("hybrid layers train a model: they take no cache")
    check_length(tokens, None, model.max_length)
    lengths, x = shares.tokens(tokens.shape[1]), model.embed_tokens(tokens)
    options = layer_options(len(model.layers), tokens, mask, None, None)
    for layer, its_options in zip(model.layers, options, strict=True):
        x = layer(x, lengths=lengths, **its_options)
    return model.norm(end(x))


LLAMA = Family(
    blocks={
        "input_layernorm": "connection_2",
        "self_attn": "attention",
        "post_attention_layernorm": "connection_1",
        "mlp": "mlp",
    },
    exits={"attention": "self_attn.o_proj", "mlp": "mlp.down_proj"},
    kind="pre-norm",
    layer_forward=llama_layer,
    stack_forward=llama_model,
)


# for each model: where its layers are, of which family, and the settings that count their heads and columns
STACKS: dict[type[nn.Module], tuple[tuple[str, Family, str, str], ...]] = {
    Bert: (("encoder.layer", BERT, "num_attention_heads", "intermediate_size"),),
    Llama: (("model.layers", LLAMA, "num_attention_heads", "intermediate_size"),),
    Bart: (
        ("model.encoder.layers", BART_ENCODER, "encoder_attention_heads", "encoder_ffn_dim"),
        ("model.decoder.layers", BART_DECODER, "decoder_attention_heads", "decoder_ffn_dim"),
    ),
}
