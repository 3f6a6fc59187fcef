"""DeepSeek-V3, read from a folder that transformers has saved: the same logits and gradients."""

import exact_experts
import pytest
import torch
import transformers

from course_lib.models.deepseek import Deepseek, DeepseekConfig
from course_lib.models.generate import generate
from course_lib.models.kv_cache import LatentCache
from course_lib.models.pretrained.deepseek import load_deepseek
from course_lib.parallelize.shape import model_shape

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 40,
    "moe_intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "first_k_dense_replace": 1,
    "n_routed_experts": 12,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
}


def saved(folder, **changes):
    config = transformers.DeepseekV3Config(**SIZES | changes)
    return exact_experts.saved(folder, config, transformers.DeepseekV3ForCausalLM)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"q_lora_rank": None, "n_shared_experts": 2, "norm_topk_prob": False},
        {"first_k_dense_replace": 0, "topk_group": 1, "num_experts_per_tok": 2},
    ],
    ids=str,
)
def test_deepseek_equals_transformers(tmp_path, changes):
    theirs = saved(tmp_path, **changes)
    ours, tokenizer = load_deepseek(tmp_path, torch.float64)
    assert tokenizer is None
    exact_experts.check_equal(ours, theirs, 97)


def test_as_it_is_in_32_bits(tmp_path):
    """Nothing is patched: transformers loads its own folder."""
    saved(tmp_path)
    theirs = transformers.DeepseekV3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(97, (2, 33))
    torch.testing.assert_close(
        load_deepseek(tmp_path)[0](tokens), theirs(tokens).logits, rtol=1e-3, atol=1e-3
    )


def test_its_shape_counts_its_parameters():
    model = Deepseek(DeepseekConfig.tiny())
    assert model_shape(model).parameters == sum(p.numel() for p in model.parameters())


def test_it_generates_with_a_cache_of_latents():
    torch.manual_seed(0)
    model, prompt = Deepseek(DeepseekConfig.tiny()).eval(), torch.randint(256, (1, 5))
    kept = generate(model, prompt, 4, cache=LatentCache(9))
    assert kept == generate(model, prompt, 4, use_cache=False)


def test_bad_input_gets_one_sentence(tmp_path):
    with pytest.raises(
        ValueError, match="n_group is 3 and topk_group 1; groups must share the 8 experts equally"
    ):
        DeepseekConfig.tiny(n_group=3)
    with pytest.raises(
        ValueError, match="num_experts_per_tok is 5; it must be from 1 to the 4 experts of a token"
    ):
        DeepseekConfig.tiny(num_experts_per_tok=5)
    with pytest.raises(ValueError, match="n_group is 8; a group must have at least 2 experts"):
        DeepseekConfig.tiny(n_group=8)
    rope = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 32}
    saved(tmp_path, rope_parameters=rope)
    with pytest.raises(ValueError, match="RoPE scaling 'yarn'; of a deepseek_v3 only none is supported"):
        load_deepseek(tmp_path)
