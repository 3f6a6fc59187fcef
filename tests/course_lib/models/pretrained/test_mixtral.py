"""Mixtral, read from a folder that transformers has saved: the same logits and gradients."""

from functools import partial

import pytest
import torch
import transformers
from torch.nn import functional as F

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
    """A random model of transformers in float64, saved; where it rounds to 32 bits, it is made not to."""
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SIZES | changes)
    config._experts_implementation = "eager"  # the others know no float64
    model = transformers.MixtralForCausalLM(config).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    model.save_pretrained(folder)
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = partial(rms_norm, module)
        if type(module).__name__ == "MixtralTopKRouter":
            module.forward = partial(route, module)
    return model


def rms_norm(norm, x):
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def route(router, x):
    logits = F.linear(x.reshape(-1, router.hidden_dim), router.weight)
    weights, chosen = logits.softmax(-1).topk(router.top_k)
    return logits, weights / weights.sum(-1, keepdim=True), chosen


@pytest.mark.parametrize("changes", [{}, {"num_experts_per_tok": 3}, {"tie_word_embeddings": True}], ids=str)
def test_mixtral_equals_transformers(tmp_path, changes):
    theirs = saved(tmp_path, **changes)
    ours, tokenizer = load_mixtral(tmp_path, torch.float64)
    assert tokenizer is None
    assert not ours.training
    tokens = torch.randint(97, (2, 33))
    mine, other = ours(tokens), theirs(tokens).logits
    assert (mine - other).abs().max() < 1e-9
    mine.square().mean().backward()
    other.square().mean().backward()
    expected, found = ({n: p.grad for n, p in model.named_parameters()} for model in (theirs, ours))
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() < 1e-9, name


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
