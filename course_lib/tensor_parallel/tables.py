"""How the course's models are cut: a style for each name. ``apply.py`` says what the styles do.

``*`` stands for one part of a name.
"""

from __future__ import annotations

from torch import nn

from course_lib.models.bert import Bert
from course_lib.models.gpt import GPT
from course_lib.models.llama import Llama

GPT_TABLE = {
    "embedding.tokens": "vocabulary",
    "embedding.positions": "positions",
    "embedding.dropout": "sequence",
    "blocks.*.norm_1": "sequence",
    "blocks.*.attention": "enter",
    "blocks.*.attention.query": "heads",
    "blocks.*.attention.key": "kv heads",
    "blocks.*.attention.value": "kv heads",
    "blocks.*.attention.core": "core",
    "blocks.*.attention.output": "row",
    "blocks.*.attention.dropout": "sequence",
    "blocks.*.norm_2": "sequence",
    "blocks.*.mlp": "enter",
    "blocks.*.mlp.up": "column",
    "blocks.*.mlp.down": "row",
    "blocks.*.mlp.dropout": "sequence",
    "norm": "sequence",
    "head": "vocabulary head",
}

BERT_TABLE = {
    "embeddings.word_embeddings": "vocabulary",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "positions",
    "embeddings.LayerNorm": "sequence",
    "embeddings.dropout": "sequence",
    "encoder": "whole",
    "encoder.layer.*.attention.self": "enter",
    "encoder.layer.*.attention.self.query": "heads",
    "encoder.layer.*.attention.self.key": "kv heads",
    "encoder.layer.*.attention.self.value": "kv heads",
    "encoder.layer.*.attention.self.core": "core",
    "encoder.layer.*.attention.output.dense": "row",
    "encoder.layer.*.attention.output.dropout": "sequence",
    "encoder.layer.*.attention.output.LayerNorm": "sequence",
    "encoder.layer.*.intermediate": "enter",
    "encoder.layer.*.intermediate.dense": "column",
    "encoder.layer.*.output.dense": "row",
    "encoder.layer.*.output.dropout": "sequence",
    "encoder.layer.*.output.LayerNorm": "sequence",
    "pooler.dense": "replicated",
}

LLAMA_TABLE = {
    "model.embed_tokens": "vocabulary",
    "model.layers.*.input_layernorm": "sequence",
    "model.layers.*.self_attn": "enter",
    "model.layers.*.self_attn.q_proj": "heads",
    "model.layers.*.self_attn.k_proj": "kv heads",
    "model.layers.*.self_attn.v_proj": "kv heads",
    "model.layers.*.self_attn.core": "core",
    "model.layers.*.self_attn.o_proj": "row",
    "model.layers.*.post_attention_layernorm": "sequence",
    "model.layers.*.mlp": "enter",
    "model.layers.*.mlp.gate_proj": "column",
    "model.layers.*.mlp.up_proj": "column",
    "model.layers.*.mlp.down_proj": "row",
    "model.norm": "sequence",
    "lm_head": "vocabulary head",
}

TABLES = {GPT: GPT_TABLE, Bert: BERT_TABLE, Llama: LLAMA_TABLE}


def table_of(model: nn.Module) -> dict[str, str]:
    """The table of one of the course's models, or of a module that holds one (``BertClassifier``).

    What the module has besides is replicated.

    Raises:
        ValueError: there is none of the course's models in it, or more than one, or one with options that no table
            knows.
    """
    found = [(name, module) for name, module in model.named_modules() if type(module) in TABLES]
    if len(found) != 1:
        known = ", ".join(kind.__name__ for kind in TABLES)
        raise ValueError(
            f"there is a table for {known}, and {type(model).__name__} holds {len(found)} of them: give one as table="
        )
    [(prefix, inner)] = found
    config = getattr(inner, "config", None)
    for option in (
        "fused_gate_up",
        "qk_norm",
    ):  # of LlamaConfig: halves that belong together, weights without a cut
        if getattr(config, option, False):
            raise ValueError(
                f"the table for {type(inner).__name__} does not fit one with {option}: give one as table="
            )
    dot = f"{prefix}." if prefix else ""
    names = {name for name, _ in inner.named_parameters(prefix=prefix)}
    others = {n.rpartition(".")[0] for n, _ in model.named_parameters() if n not in names}
    return {dot + name: style for name, style in TABLES[type(inner)].items()} | dict.fromkeys(
        others - {""}, "replicated"
    )
