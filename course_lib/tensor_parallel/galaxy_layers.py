"""The layers of BERT and LLaMA as blocks that can be placed one by one (``galaxy.py``).

For each family of layers: which module belongs to which block, and a forward that says where a block ends. The forward
computes what the model's own does, and between two blocks it calls ``moves(block, x)``, which returns the tensor for
each block that reads x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from course_lib.models.bert import Bert, BertEncoder, BertLayer
from course_lib.models.kv_cache import Cache, check_length, layer_options
from course_lib.models.llama import Llama, LlamaLayer, LlamaModel
from simulator.inputs.galaxy import POST_NORM, PRE_NORM, Shares, Transition

Forward = Callable[..., Tensor]


class Moves(Protocol):
    """What the layers call between two blocks; ``galaxy.py`` has it."""

    transitions: Mapping[str, Transition]
    placed: Mapping[str, str]  # the placement of each block

    def __call__(self, block: str, x: Tensor) -> Any:
        """For each reader of the block's result x, the tensor that it reads; a single one not in a tuple."""
        ...

    def own_range(self) -> tuple[int, int]:
        """Where this rank's tokens begin in the sequence, and how many there are."""
        ...


@dataclass(frozen=True)
class Family:
    """Layers of one kind.

    Attributes:
        blocks: for the name of a module in the layer, the block to which it belongs with all that is inside it; a
            longer name counts before a shorter one.
        exits: for a block, the module with which it ends.
        readers: which blocks read a block's result.
        layer_forward: ``(layer, moves, x, …)``, instead of the layer's own forward.
        stack_forward: ``(stack, shares, end, …)``, instead of the forward of the module that calls the layers.
    """

    blocks: Mapping[str, str]
    exits: Mapping[str, str]
    readers: Mapping[str, Sequence[str]]
    layer_forward: Forward
    stack_forward: Forward

    def block_of(self, name: str) -> str | None:
        """The block of a module of the layer; None where the module holds more than one block."""
        inside = [prefix for prefix in self.blocks if f"{name}.".startswith(f"{prefix}.")]
        return self.blocks[max(inside, key=len)] if inside else None


@dataclass(frozen=True)
class Stack:
    """The layers of a model, and the module whose forward calls them one after the other.

    Attributes:
        layers: by their names in the whole model.
        heads, columns: of one layer. ``group`` query heads share one head of keys and values.
    """

    family: Family
    module: nn.Module
    layers: Mapping[str, nn.Module]
    heads: int
    columns: int
    group: int = 1


def stack_of(model: nn.Module) -> Stack:
    """The layers of the one BERT or LLaMA in ``model``.

    Raises:
        ValueError: there is none, or more than one.
    """
    found = [(name, module) for name, module in model.named_modules() if type(module) in (Bert, Llama)]
    if len(found) != 1:
        raise ValueError(
            f"hybrid layers are for one Bert or Llama, and {type(model).__name__} holds {len(found)} of them"
        )
    [(name, inner)] = found
    family, path, layers = (BERT, "encoder", "layer") if type(inner) is Bert else (LLAMA, "model", "layers")
    stack, config = inner.get_submodule(path), inner.config
    named = {
        ".".join(filter(None, (name, path, layers, i))): m for i, m in getattr(stack, layers).named_children()
    }
    heads = config.num_attention_heads
    group = heads // getattr(config, "num_key_value_heads", heads)
    return Stack(family, stack, named, heads, config.intermediate_size, group)


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
    readers=POST_NORM,
    layer_forward=bert_layer,
    stack_forward=bert_encoder,
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
    readers=PRE_NORM,
    layer_forward=llama_layer,
    stack_forward=llama_model,
)
