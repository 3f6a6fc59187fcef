"""Mixtral, read from a folder that transformers has saved: the same logits and gradients."""

import exact_experts
import pytest
import torch
import transformers

from course_lib.models.mixtral import MixtralConfig, MixtralMLP
from course_lib.models.pretrained.mixtral import load_mixtral

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
}


def saved(folder, **changes):
    return exact_experts.saved(
        folder, transformers.MixtralConfig(**SIZES | changes), transformers.MixtralForCausalLM
    )


@pytest.mark.parametrize("changes", [{}, {"num_experts_per_tok": 3}, {"tie_word_embeddings": True}], ids=str)
def test_mixtral_equals_transformers(tmp_path, changes):
    theirs = saved(tmp_path, **changes)
    ours, tokenizer = load_mixtral(tmp_path, torch.float64)
    assert tokenizer is None
    assert not ours.training
    exact_experts.check_equal(ours, theirs, 97)


def test_as_it_is_in_32_bits(tmp_path):
    """Nothing is patched: transformers loads its own folder."""
    saved(tmp_path)
    theirs = transformers.MixtralForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(97, (2, 33))
    torch.testing.assert_close(load_mixtral(tmp_path)[0](tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)


def test_an_expert_without_tokens_has_a_gradient_of_zeros():
    torch.manual_seed(0)
    layer = MixtralMLP(MixtralConfig.tiny())
    layer.gate.weight.data[3] = -1
    layer(torch.rand(2, 8, 128)).square().sum().backward()
    used = {int(e) for e in layer.chosen.flatten()}
    reached = layer.experts.down_proj.grad.flatten(1).any(1).tolist()
    assert reached == [e in used for e in range(4)]
    assert 3 not in used


def test_bad_input_gets_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="num_experts_per_tok is 9; it must be from 1 to the 4 experts"):
        MixtralConfig.tiny(num_experts_per_tok=9)
    saved(tmp_path, sliding_window=16)
    with pytest.raises(ValueError, match="sliding_window 16; only None is supported"):
        load_mixtral(tmp_path)
