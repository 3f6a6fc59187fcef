import pytest
import torch
from transformers import GlmConfig, GlmForCausalLM, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers import LlamaConfig as TheirConfig

from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.published import CHATGLM
from simulator.inputs.known_models import MODELS

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 24,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 2},
        {"num_key_value_heads": 1, "tie_word_embeddings": True},
        {"num_key_value_heads": 2, "head_dim": 16},
    ],
    ids=["multi-head", "grouped", "multi-query, tied", "wide heads"],
)
def test_logits_and_gradients_equal_transformers(changes):
    torch.manual_seed(0)
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rope_theta": 500.0}
    theirs = LlamaForCausalLM(TheirConfig(**SIZES, **changes, **rope, rms_norm_eps=1e-5))
    assert_equal(theirs, LlamaConfig(**SIZES, **changes, rope_theta=500.0))


@pytest.mark.parametrize(
    "heads", [{"num_key_value_heads": 2}, {"num_key_value_heads": 1, "head_dim": 12}], ids=str
)
def test_the_options_of_chatglm_equal_transformers_glm(heads):
    torch.manual_seed(0)
    heads = {"head_dim": 8} | heads
    rope = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    theirs = GlmForCausalLM(
        GlmConfig(**SIZES, **heads, rope_parameters=rope, rms_norm_eps=1e-5, pad_token_id=None)
    )
    assert_equal(theirs, LlamaConfig(**SIZES, **heads, **CHATGLM, rope_theta=500.0))


def test_the_norms_of_queries_and_keys_equal_transformers_qwen3():
    torch.manual_seed(0)
    heads = {"num_key_value_heads": 2, "head_dim": 8}
    rope = {"rope_type": "default", "rope_theta": 500.0}
    theirs = Qwen3ForCausalLM(Qwen3Config(**SIZES, **heads, rope_parameters=rope, rms_norm_eps=1e-5))
    assert_equal(theirs, LlamaConfig(**SIZES, **heads, qk_norm=True, rope_theta=500.0))


def assert_equal(theirs, config):
    """Logits and gradients, after loading their weights by their names."""
    for p in theirs.parameters():  # norms start at 1: an error in them would not show
        torch.nn.init.normal_(p, std=0.2)
    ours = Llama(config)
    ours.load_state_dict(theirs.state_dict())
    tokens = torch.randint(97, (2, 17))
    mine, other = ours(tokens), theirs(tokens).logits
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    mine.square().mean().backward()
    other.square().mean().backward()
    gradients = {name: p.grad for name, p in ours.named_parameters()}
    for name, p in theirs.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_the_default_is_llama_2_7b():
    with torch.device("meta"):
        model = Llama(LlamaConfig())
    assert sum(p.numel() for p in model.parameters()) == MODELS["llama-2-7b"].parameters == 6_738_415_616


def test_a_token_never_sees_the_ones_after_it():
    model = Llama(LlamaConfig.tiny())
    tokens = torch.randint(256, (1, 12))
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_without_positions_the_order_of_earlier_tokens_does_not_matter():
    model = Llama(LlamaConfig.tiny(partial_rotary_factor=0.0, num_hidden_layers=1))
    tokens = torch.tensor([[1, 2, 3, 4]])
    torch.testing.assert_close(model(tokens)[0, -1], model(tokens[:, [2, 0, 1, 3]])[0, -1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 5}, "hidden_size 128 does not divide into 5 heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; it must divide the 4 attention heads"),
        ({"head_dim": 7}, "head_dim is 7; rotary positions turn pairs"),
    ],
)
def test_refuses_a_wrong_configuration(changes, message):
    with pytest.raises(ValueError, match=message):
        LlamaConfig.tiny(**changes)


def test_refuses_a_sequence_longer_than_its_positions():
    with pytest.raises(ValueError, match="129 tokens; this model has 128 positions"):
        Llama(LlamaConfig.tiny())(torch.zeros(1, 129, dtype=torch.long))
