"""Published transformers as ``ModelShape``s, each with the paper that prints its sizes."""

from __future__ import annotations

from typing import Any

from simulator.inputs.shape import ModelShape


def _llama(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, sequence: int, **more
) -> ModelShape:
    """Rotary positions, RMSNorm, SwiGLU, no biases, no dropout, an output matrix of its own."""
    return ModelShape(
        layers,
        hidden,
        heads,
        vocab,
        sequence,
        kv_heads,
        ffn,
        activation="swiglu",
        tied=False,
        learned_positions=False,
        biases=False,
        dropout=False,
        **more,
    )


def _t5(side: int, hidden: int, heads: int, ffn: int) -> ModelShape:
    """RMSNorm, no biases, a final norm and 32 relative positions for each head on both sides."""
    return ModelShape(
        *(2 * side, hidden, heads, 32128, 512, heads, ffn),
        learned_positions=False,
        biases=False,
        head_dim=128,
        decoder_layers=side,
        other_parameters=hidden + 2 * 32 * heads,
    )


def _bart(side: int, hidden: int, heads: int) -> ModelShape:
    """Positions and the embedding's norm on both sides, two positions more than tokens, no final norm."""
    more = (1024 + 4) * hidden + 2 * hidden
    sizes = 2 * side, hidden, heads, 50265, 1024
    return ModelShape(*sizes, decoder_layers=side, other_parameters=more)


ROTARY: dict[str, Any] = {"learned_positions": False, "dropout": False}
LATENT: dict[str, Any] = {"head_dim": 128, "rope_dim": 64, "q_rank": 1536, "kv_rank": 512}
MODELS = {
    # arXiv:2005.14165, with the padded vocabulary of arXiv:2104.04473 and arXiv:2205.05198
    "gpt3-175b": ModelShape(96, 12288, 96, 51200, 2048),
    # arXiv:2205.05198, table 3
    "gpt-22b": ModelShape(48, 6144, 64, 51200, 2048),
    "gpt-530b": ModelShape(105, 20480, 128, 51200, 2048),
    "gpt-1t": ModelShape(128, 25600, 160, 51200, 2048),
    # Radford et al. 2019
    "gpt2": ModelShape(12, 768, 12, 50257, 1024),
    "gpt2-xl": ModelShape(48, 1600, 25, 50257, 1024),
    # arXiv:1810.04805; others: two token types, the pooler (its one norm is that of the embedding)
    "bert-base": ModelShape(12, 768, 12, 30522, 512, other_parameters=2 * 768 + 768 * 769),
    "bert-large": ModelShape(24, 1024, 16, 30522, 512, other_parameters=2 * 1024 + 1024 * 1025),
    # arXiv:1909.08053: Megatron-LM's largest GPT-2 and BERT
    "megatron-gpt2-8.3b": ModelShape(72, 3072, 32, 51200, 1024),
    "megatron-bert-3.9b": ModelShape(48, 2560, 40, 30522, 512, other_parameters=2 * 2560 + 2560 * 2561),
    # arXiv:1910.10683: encoder-decoders with as many layers on both sides
    "t5-3b": _t5(24, 1024, 32, 16384),
    "t5-11b": _t5(24, 1024, 128, 65536),
    # arXiv:1910.13461
    "bart-base": _bart(6, 768, 12),
    "bart-large": _bart(12, 1024, 16),
    # arXiv:2311.16867; one LayerNorm a layer holds as much as two norms without a bias
    "falcon-7b": ModelShape(32, 4544, 71, 65024, 2048, 1, biases=False, other_parameters=4544, **ROTARY),
    "falcon-40b": ModelShape(60, 8192, 128, 65024, 2048, 8, biases=False, norm_biases=True, **ROTARY),
    # arXiv:2406.12793; from the second on with LLaMA's layer, and biases of q, k and v
    "chatglm-6b": ModelShape(28, 4096, 32, 130528, 2048, **ROTARY),
    "chatglm3-6b": _llama(28, 4096, 32, 2, 13696, 65024, 8192, other_layer_parameters=4096 + 2 * 256),
    # arXiv:2302.13971, arXiv:2307.09288, arXiv:2407.21783
    "llama-7b": _llama(32, 4096, 32, 32, 11008, 32000, 2048),
    "llama-13b": _llama(40, 5120, 40, 40, 13824, 32000, 2048),
    "llama-65b": _llama(80, 8192, 64, 64, 22016, 32000, 2048),
    "llama-2-7b": _llama(32, 4096, 32, 32, 11008, 32000, 4096),
    "llama-2-13b": _llama(40, 5120, 40, 40, 13824, 32000, 4096),
    "llama-2-70b": _llama(80, 8192, 64, 8, 28672, 32000, 4096),
    "codellama-34b": _llama(48, 8192, 64, 8, 22016, 32000, 4096),  # arXiv:2308.12950
    "llama-3-8b": _llama(32, 4096, 32, 8, 14336, 128256, 8192),
    "llama-3-70b": _llama(80, 8192, 64, 8, 28672, 128256, 8192),
    "llama-3-405b": _llama(126, 16384, 128, 8, 53248, 128256, 8192),
    # arXiv:2401.04088
    "mixtral-8x7b": _llama(32, 4096, 32, 8, 14336, 32000, 4096, experts=8, experts_per_token=2),
    "mixtral-8x22b": _llama(56, 6144, 48, 8, 16384, 32768, 4096, experts=8, experts_per_token=2),
    # arXiv:2505.09388; a norm for each head's queries and keys
    "qwen3-30b-a3b": _llama(
        *(48, 2048, 32, 4, 6144, 151936, 4096),
        head_dim=128,
        other_layer_parameters=2 * 128,
        experts=128,
        experts_per_token=8,
        expert_ffn=768,
    ),
    # arXiv:2405.04434, arXiv:2412.19437
    "deepseek-v2": _llama(
        *(60, 5120, 128, 128, 12288, 102400, 4096),
        **LATENT,
        experts=160,
        experts_per_token=6,
        expert_ffn=1536,
        shared_experts=2,
        dense_layers=1,
    ),
    "deepseek-v3": _llama(
        *(61, 7168, 128, 128, 18432, 129280, 4096),
        **LATENT,
        experts=256,
        experts_per_token=8,
        expert_ffn=2048,
        shared_experts=1,
        dense_layers=3,
    ),
    # arXiv:2508.10925; a sink for each head, the router's bias, and a window in every second layer
    "gpt-oss-120b": ModelShape(
        *(36, 2880, 64, 201088, 4096, 8, 2880, "swiglu", False),
        norm_biases=False,
        head_dim=64,
        experts=128,
        experts_per_token=4,
        other_layer_parameters=64 + 128,
        window=128,
        full_layers=18,
        **ROTARY,
    ),
}

# Networks that are no transformers: their model states follow from the parameters alone (torchvision's counts).
PARAMETERS_ONLY = {"resnet18": 11_689_512, "resnet50": 25_557_032, "resnet152": 60_192_808}
