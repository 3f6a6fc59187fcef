"""MLA equals transformers' DeepSeek-V2; its two forms are equal; the caches of real models take what is predicted."""

import pytest
import torch
from transformers import DeepseekV2Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import (
    DeepseekV2Attention,
    DeepseekV2RotaryEmbedding,
)

from course_lib.models.generate import generate
from course_lib.models.kv_cache import KVCache, LatentCache
from course_lib.models.latent_attention import LatentAttention
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.masks import causal_mask
from simulator.predict.kv_cache import kv_cache_bytes_per_token, latent_cache_bytes_per_token

SIZES = {"heads": 3, "head_size": 10, "latent": 12, "rope_size": 4}


def attention():
    torch.manual_seed(0)
    module = LatentAttention(24, **SIZES)
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return module


def test_output_and_gradients_equal_transformers_deepseek_v2():
    ours = attention()
    config = DeepseekV2Config(
        hidden_size=24, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=None, kv_lora_rank=12,
        qk_rope_head_dim=4, qk_nope_head_dim=10, v_head_dim=10, head_dim=4,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    theirs = DeepseekV2Attention(config, 0)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 7, 24)
    rotations = DeepseekV2RotaryEmbedding(config)(x, torch.arange(7)[None])
    mine, [other, _] = ours(x), theirs(x, position_embeddings=rotations)
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    mine.square().mean().backward()
    other.square().mean().backward()
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_attending_to_latents_equals_attending_to_keys_and_values():
    module, x = attention(), torch.randn(2, 9, 24)
    with torch.no_grad():
        whole = module(x)
        for cache in (LatentCache(9), KVCache(9)):
            pieces = []
            for new in x.split([4, 1, 4], dim=1):
                positions = cache.extend(new[..., 0])
                pieces.append(
                    module(new, positions=positions, attend=lambda *qkv, cache=cache: cache.attend(0, *qkv))
                )
            torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(module(x, causal_mask(9)), whole)


def llama(kv_heads):
    sizes = {
        "vocab_size": 31,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "head_dim": 6,
    }
    model = Llama(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=kv_heads))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model


def test_predicted_cache_bytes_equal_those_of_the_models():
    prompts = torch.randint(31, (3, 4))
    for kv_heads in (4, 2, 1):
        cache = KVCache(10)
        generate(llama(kv_heads), prompts, 6, cache=cache)
        assert cache.bytes == 3 * 10 * kv_cache_bytes_per_token(2, kv_heads, 6, bytes_per_number=4)
    model = llama(4)
    for layer in model.model.layers:
        layer.self_attn = attention()
    cache = LatentCache(10)
    tokens = generate(model, prompts, 6, cache=cache)
    assert tokens == generate(model, prompts, 6, use_cache=False)
    assert cache.bytes == 3 * 10 * latent_cache_bytes_per_token(2, 12, 4, bytes_per_number=4)
    prompts = [[1, 2, 3, 4, 5], [6]]
    assert generate(model, prompts, 6) == generate(model, prompts, 6, use_cache=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latent": 0}, "latent is 0"),
        ({"rope_size": 0}, "rope_size is 0"),
        ({"rope_size": 3}, "RoPE turns pairs"),
    ],
)
def test_refuses_wrong_sizes(changes, message):
    with pytest.raises(ValueError, match=message):
        LatentAttention(24, **(SIZES | changes))
