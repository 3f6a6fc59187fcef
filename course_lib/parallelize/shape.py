"""The course's models as the simulator knows them: a ``ModelShape``, read from the model."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from course_lib.models.bart import Bart
from course_lib.models.bert import Bert
from course_lib.models.deepseek import Deepseek
from course_lib.models.gpt import GPT
from course_lib.models.llama import Llama
from course_lib.models.mixtral import Mixtral
from simulator.inputs.shape import ModelShape

# Parameters of LLaMA's heirs (ChatGLM, Qwen) in each layer, which no other field of a shape describes.
OF_HEIRS = ("q_proj.bias", "k_proj.bias", "v_proj.bias", "q_norm.weight", "k_norm.weight")


def model_shape(model: nn.Module, sequence: int | None = None) -> ModelShape | None:
    """The shape of a GPT, a Bert (also inside a ``BertClassifier``), a Llama, a Mixtral, a Deepseek or a Bart whose two
    sides have equal heads and widths; None for any other module.

    Args:
        sequence: tokens of a sequence; None: as many as the model has positions.
    """
    for module in model.modules():
        if isinstance(module, GPT):
            return _gpt(module, sequence)
        if isinstance(module, Llama):
            return _llama(module, sequence)
        if isinstance(module, Mixtral):
            c = module.config
            experts = {"experts": c.num_local_experts, "experts_per_token": c.num_experts_per_tok}
            return replace(_llama(module, sequence), **experts)
        if isinstance(module, Deepseek):
            return _deepseek(module, sequence)
        if isinstance(module, Bert):
            return _bert(model, module, sequence)
        if isinstance(module, Bart):
            return _bart(module, sequence)
    return None


def _gpt(model: GPT, sequence: int | None) -> ModelShape:
    c = model.config
    return ModelShape(
        c.num_layers,
        c.hidden_size,
        c.num_heads,
        c.vocab_size,
        sequence or c.max_length,
        tied=c.tie_embeddings,
        dropout=c.dropout > 0,
    )


def _llama(model: Llama | Mixtral, sequence: int | None) -> ModelShape:
    c = model.config
    return ModelShape(
        c.num_hidden_layers,
        c.hidden_size,
        c.num_attention_heads,
        c.vocab_size,
        sequence or c.max_position_embeddings,
        kv_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        ffn=c.intermediate_size,
        activation="swiglu",
        tied=c.tie_word_embeddings,
        learned_positions=False,
        biases=False,
        dropout=False,
        other_parameters=sum(p.numel() for name, p in model.named_parameters() if name.endswith(OF_HEIRS)),
    )


def _deepseek(model: Deepseek, sequence: int | None) -> ModelShape:
    c = model.config
    return ModelShape(
        c.num_hidden_layers,
        c.hidden_size,
        c.num_attention_heads,
        c.vocab_size,
        sequence or c.max_position_embeddings,
        head_dim=c.qk_nope_head_dim,
        q_rank=c.q_lora_rank,
        kv_rank=c.kv_lora_rank,
        rope_dim=c.qk_rope_head_dim,
        value_dim=c.v_head_dim,
        ffn=c.intermediate_size,
        dense_layers=c.first_k_dense_replace,
        experts=c.n_routed_experts,
        experts_per_token=c.num_experts_per_tok,
        expert_ffn=c.moe_intermediate_size,
        shared_experts=c.n_shared_experts,
        activation="swiglu",
        tied=c.tie_word_embeddings,
        learned_positions=False,
        biases=False,
        dropout=False,
    )


def _bert(model: nn.Module, bert: Bert, sequence: int | None) -> ModelShape:
    """BERT has no output matrix. Its token types, and what stands behind the layers, are the other parameters."""
    c, layers = bert.config, bert.encoder.layer
    known = sum(p.numel() for p in layers.parameters())
    known += (c.vocab_size + c.max_position_embeddings) * c.hidden_size
    known += sum(p.numel() for p in bert.embeddings.LayerNorm.parameters())  # counted as the final norm
    return ModelShape(
        c.num_hidden_layers,
        c.hidden_size,
        c.num_attention_heads,
        c.vocab_size,
        sequence or c.max_position_embeddings,
        ffn=c.intermediate_size,
        dropout=c.hidden_dropout_prob > 0,
        other_parameters=sum(p.numel() for p in model.parameters()) - known,
    )


def _bart(model: Bart, sequence: int | None) -> ModelShape | None:
    """Both texts have ``sequence`` tokens. It has no final norm; positions and the embedding's norm are there twice."""
    c = model.config
    heads, ffn = c.encoder_attention_heads, c.encoder_ffn_dim
    if (heads, ffn) != (c.decoder_attention_heads, c.decoder_ffn_dim):
        return None
    shape = ModelShape(
        c.encoder_layers + c.decoder_layers,
        c.d_model,
        heads,
        c.vocab_size,
        sequence or c.max_position_embeddings,
        ffn=ffn,
        decoder_layers=c.decoder_layers,
        dropout=c.dropout > 0,
    )
    everything = sum(p.numel() for p in model.parameters())
    return replace(shape, other_parameters=everything - shape.parameters)
