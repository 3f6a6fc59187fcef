import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from course_lib.models.gpt import GPT, GPTConfig


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def gpt2_state(theirs: GPT2LMHeadModel) -> dict[str, torch.Tensor]:
    """transformers' GPT-2 under our names; it stores matrices transposed, and query, key and value as one."""
    state = theirs.state_dict()
    ours = {
        "embedding.tokens.weight": state["transformer.wte.weight"],
        "embedding.positions.weight": state["transformer.wpe.weight"],
        "norm.weight": state["transformer.ln_f.weight"],
        "norm.bias": state["transformer.ln_f.bias"],
        "head.weight": state["lm_head.weight"],
    }
    for layer in range(theirs.config.n_layer):
        block, source = f"blocks.{layer}", f"transformer.h.{layer}"
        for name, other in [("norm_1", "ln_1"), ("norm_2", "ln_2")]:
            ours |= {
                f"{block}.{name}.{kind}": state[f"{source}.{other}.{kind}"] for kind in ("weight", "bias")
            }
        linears = [("attention.output", "attn.c_proj"), ("mlp.up", "mlp.c_fc"), ("mlp.down", "mlp.c_proj")]
        for name, other in linears:
            ours[f"{block}.{name}.weight"] = state[f"{source}.{other}.weight"].T
            ours[f"{block}.{name}.bias"] = state[f"{source}.{other}.bias"]
        weights = state[f"{source}.attn.c_attn.weight"].T.chunk(3)
        biases = state[f"{source}.attn.c_attn.bias"].chunk(3)
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            ours |= {f"{block}.attention.{name}.weight": weight, f"{block}.attention.{name}.bias": bias}
    return ours


def test_logits_and_gradients_equal_transformers_gpt2():
    torch.manual_seed(0)
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=97,
            n_positions=24,
            n_embd=32,
            n_layer=3,
            n_head=4,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
        )
    )
    for parameter in theirs.parameters():  # biases and norms start trivial: an error in them would not show
        torch.nn.init.normal_(parameter, std=0.2)
    ours = GPT(GPTConfig(vocab_size=97, max_length=24, num_layers=3, num_heads=4, hidden_size=32))
    ours.load_state_dict(gpt2_state(theirs))

    tokens = torch.randint(97, (2, 17))
    mine, other = ours(tokens), theirs(tokens).logits
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    mine.square().mean().backward()
    other.square().mean().backward()
    torch.testing.assert_close(
        ours.embedding.tokens.weight.grad, theirs.transformer.wte.weight.grad, rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        ours.blocks[0].attention.key.weight.grad,
        theirs.transformer.h[0].attn.c_attn.weight.grad.T.chunk(3)[1],
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    "config",
    [
        GPTConfig.tiny(),
        GPTConfig.tiny(tie_embeddings=False),
        GPTConfig(vocab_size=11, max_length=5, num_layers=1, num_heads=3, hidden_size=12),
        GPTConfig(),
    ],
    ids=["tiny", "untied", "odd", "gpt2"],
)
def test_parameter_formula(config):
    with torch.device("meta"):
        assert count(GPT(config)) == config.parameters


def test_the_default_is_gpt2_small():
    assert GPTConfig().parameters == 124_439_808  # the published checkpoint's number


def test_a_token_never_sees_the_ones_after_it():
    model = GPT(GPTConfig.tiny())
    tokens = torch.randint(256, (1, 12))
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_a_tied_weight_stays_one_tensor_in_a_copy():
    tied, untied = GPT(GPTConfig.tiny()), GPT(GPTConfig.tiny(tie_embeddings=False))
    twin = copy.deepcopy(tied)
    assert twin.head.weight is twin.embedding.tokens.weight is not tied.head.weight
    assert untied.head.weight is not untied.embedding.tokens.weight


def test_dropout_acts_in_training_only():
    model = GPT(GPTConfig.tiny(dropout=0.5))
    tokens = torch.randint(256, (1, 8))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_the_residual_stream_does_not_grow_with_depth():
    torch.manual_seed(0)
    stds = []
    for layers in (2, 32):
        model = GPT(GPTConfig.tiny(num_layers=layers))
        model.norm.register_forward_pre_hook(lambda _module, inputs: stds.append(inputs[0].std().item()))
        model(torch.randint(256, (4, 64)))
    assert stds[1] < 1.5 * stds[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "hidden_size 128 does not divide into 5 heads"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_refuses_a_wrong_configuration(changes, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig.tiny(**changes)


def test_refuses_a_sequence_longer_than_its_positions():
    with pytest.raises(ValueError, match="129 tokens; this model has 128 positions"):
        GPT(GPTConfig.tiny())(torch.zeros(1, 129, dtype=torch.long))
