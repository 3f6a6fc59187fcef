"""How the course's models are cut: a style for each name. ``apply.py`` says what the styles do."""

from __future__ import annotations

from torch import nn

from course_lib.models.bart import Bart
from course_lib.models.bert import Bert
from course_lib.models.gpt import GPT
from course_lib.models.llama import Llama
from course_lib.models.masked_words import BertMaskedWords

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

# No pooler. The head goes on with each rank's own tokens, so the encoder's output is not made whole.
MASKED_WORDS_TABLE = {
    **{f"bert.{name}": BERT_TABLE[name] for name in BERT_TABLE if name not in ("encoder", "pooler.dense")},
    "cls.predictions.transform.dense": "sequence",
    "cls.predictions.transform.LayerNorm": "sequence",
    "cls.predictions.decoder": "vocabulary head",
}

BART_TABLE = {
    "model.shared": "vocabulary",
    "model.*.embed_positions": "positions",
    "model.*.layernorm_embedding": "sequence",
    "model.*.dropout": "sequence",
    "model.*.layers.*.self_attn": "enter",
    "model.*.layers.*.self_attn_dropout": "sequence",
    "model.*.layers.*.self_attn_layer_norm": "sequence",
    "model.*.layers.*.encoder_attn": "enter",
    "model.*.layers.*.memory_input": "enter",
    "model.*.layers.*.encoder_attn_dropout": "sequence",
    "model.*.layers.*.encoder_attn_layer_norm": "sequence",
    "model.*.layers.*.*.q_proj": "heads",
    "model.*.layers.*.*.k_proj": "kv heads",
    "model.*.layers.*.*.v_proj": "kv heads",
    "model.*.layers.*.*.core": "core",
    "model.*.layers.*.*.out_proj": "row",
    "model.*.layers.*.mlp_input": "enter",
    "model.*.layers.*.fc1": "column",
    "model.*.layers.*.activation_dropout": "core",
    "model.*.layers.*.fc2": "row",
    "model.*.layers.*.final_dropout": "sequence",
    "model.*.layers.*.final_layer_norm": "sequence",
    "lm_head": "vocabulary head",
}

TABLES = {
    GPT: GPT_TABLE,
    Bert: BERT_TABLE,
    BertMaskedWords: MASKED_WORDS_TABLE,
    Llama: LLAMA_TABLE,
    Bart: BART_TABLE,
}


def table_of(model: nn.Module) -> dict[str, str]:
    """The table of one of the course's models, or of a module that holds one (``BertClassifier``).

    What the module has besides is replicated.

    Raises:
        ValueError: there is none of the course's models in it, or more than one, or one with options that no table
            knows.
    """
    found = [(name, module) for name, module in model.named_modules() if type(module) in TABLES]
    found = [  # a model around another one has a table of its own
        (name, module)
        for name, module in found
        if not any(module in outer.modules() for _, outer in found if outer is not module)
    ]
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
        "final_logits_bias",
    ):  # of LlamaConfig: halves that belong together, weights without a cut; of BartConfig: a row of all words
        if getattr(config, option, False):
            raise ValueError(
                f"the table for {type(inner).__name__} does not fit one with {option}: give one as table="
            )
    dot = f"{prefix}." if prefix else ""
    names = {name for name, _ in inner.named_parameters(prefix=prefix)}
    # What fine-tuning puts between the modules of a layer (adapters) works on each token by itself.
    added = {n.rpartition(".")[0] for n in names if ".adapters." in n}
    others = {n.rpartition(".")[0] for n, _ in model.named_parameters() if n not in names}
    styles = {dot + name: style for name, style in TABLES[type(inner)].items()}
    return styles | dict.fromkeys(others - {""}, "replicated") | dict.fromkeys(sorted(added), "sequence")
