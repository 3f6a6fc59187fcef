import pytest
import torch
from transformers import FalconConfig as TheirConfig
from transformers import FalconForCausalLM

from course_lib.models.falcon import Falcon, FalconConfig
from course_lib.models.masks import causal_mask, padding_mask, see_itself

SIZES = {"vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 24}


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 6},
        {"num_attention_heads": 6, "num_kv_heads": 2, "new_decoder_architecture": True},
        {
            "num_attention_heads": 4,
            "num_kv_heads": 4,
            "new_decoder_architecture": True,
            "tie_word_embeddings": False,
        },
    ],
    ids=["7B: multi-query, one norm", "40B: grouped, two norms", "a head of keys for each query, untied"],
)
def test_logits_and_gradients_equal_transformers(changes):
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 500.0}
    theirs = FalconForCausalLM(TheirConfig(**SIZES, **changes, rope_parameters=rope, layer_norm_epsilon=1e-5))
    for p in theirs.parameters():
        torch.nn.init.normal_(p, std=0.2)
    ours = Falcon(FalconConfig(**SIZES, **changes, rope_theta=500.0))
    ours.load_state_dict(theirs.state_dict())

    tokens = torch.randint(97, (2, 17))
    mine, other = ours(tokens), theirs(tokens).logits
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    mine.square().mean().backward()
    other.square().mean().backward()
    gradients = {name: p.grad for name, p in ours.named_parameters()}
    for name, p in theirs.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad, rtol=1e-4, atol=1e-5, msg=name)

    real = torch.ones_like(tokens)
    real[1, 12:] = 0
    mine = ours(tokens, see_itself(causal_mask(17) & padding_mask(real)))
    other = theirs(tokens, attention_mask=real).logits
    torch.testing.assert_close(mine[1, :12], other[1, :12], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 70}, "hidden_size 4544 does not divide into 70 heads"),
        ({"num_kv_heads": 3}, "num_kv_heads is 3; it must divide the 71"),
        ({"num_kv_heads": 0}, "num_kv_heads is 0"),
    ],
)
def test_refuses_a_wrong_configuration(changes, message):
    with pytest.raises(ValueError, match=message):
        FalconConfig(**changes)


def test_refuses_a_sequence_longer_than_its_positions():
    model = Falcon(FalconConfig(**SIZES, num_attention_heads=6))
    with pytest.raises(ValueError, match="25 tokens; this model has 24 positions"):
        model(torch.zeros(1, 25, dtype=torch.long))
