"""Masks against loops over every pair of query and key, and against transformers' own masks."""

import itertools

import pytest
import torch
from transformers import LlamaConfig as TheirConfig
from transformers import LlamaForCausalLM

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.kv_cache import KVCache
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.masks import causal_mask, padding_mask, prefix_mask, see_itself


def test_each_mask_by_its_definition():
    for queries, keys in [(5, 5), (1, 4), (2, 6), (1, 1), (0, 3)]:
        mask = causal_mask(queries, keys)
        assert mask.shape == (queries, keys)
        for q, k in itertools.product(range(queries), range(keys)):
            assert mask[q, k] == (k <= keys - queries + q)
    prefix = torch.tensor([0, 2, 5])
    mask = prefix_mask(prefix, 4, 5)
    assert mask.shape == (3, 1, 4, 5)
    for i, q, k in itertools.product(range(3), range(4), range(5)):
        assert mask[i, 0, q, k] == (k <= 1 + q or k < prefix[i])
    assert torch.equal(prefix_mask(2, 4)[0, 0], prefix_mask(torch.tensor([2]), 4, 4)[0, 0])


def test_a_padded_sequence_gives_what_it_gives_alone_and_what_transformers_gives():
    torch.manual_seed(0)
    sizes = {"vocab_size": 31, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}
    theirs = LlamaForCausalLM(TheirConfig(**sizes, rms_norm_eps=1e-5)).eval()
    ours = Llama(LlamaConfig(**sizes))
    ours.load_state_dict(theirs.state_dict())
    tokens = torch.randint(31, (2, 9))
    for pad, name in [(slice(0, 3), "left"), (slice(6, 9), "right")]:
        real = torch.ones(2, 9, dtype=torch.long)
        real[1, pad] = 0
        kept = real[1].bool()
        causal = see_itself(causal_mask(9) & padding_mask(real))
        logits = ours(tokens, causal)
        assert not logits.isnan().any(), name
        torch.testing.assert_close(logits[1, kept], ours(tokens[1:, kept])[0], msg=name)
        # RoPE's products depend on distances alone, so their positions, which count padding, do not matter
        other = theirs(tokens, attention_mask=real).logits
        torch.testing.assert_close(logits[1, kept], other[1, kept], rtol=1e-5, atol=1e-5)
        # a prefix of the first two tokens and padding together
        first = int(kept.nonzero()[0])
        both = see_itself(prefix_mask(torch.tensor([2, first + 2]), 9) & padding_mask(real))
        alone = ours(tokens[1:, kept], prefix_mask(2, 6))[0]
        torch.testing.assert_close(ours(tokens, both)[1, kept], alone, msg=name)
        assert not torch.allclose(alone[0], logits[1, kept][0])  # the prefix's first token saw its second


@torch.no_grad()
def test_a_prompt_that_sees_itself_in_both_directions_is_cached_like_any_other():
    torch.manual_seed(0)
    model, tokens = Llama(LlamaConfig.tiny(num_hidden_layers=2)), torch.randint(256, (2, 9))
    cache = KVCache(9)
    logits = [model(tokens[:, :5], prefix_mask(5, 5), cache), model(tokens[:, 5:], cache=cache)]
    torch.testing.assert_close(torch.cat(logits, 1), model(tokens, prefix_mask(5, 9)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "make", [lambda: Llama(LlamaConfig.tiny()), lambda: GPT(GPTConfig.tiny())], ids=["llama", "gpt"]
)
def test_a_mask_of_the_wrong_shape_is_refused_in_one_sentence(make):
    model, tokens = make(), torch.ones(2, 6, dtype=torch.long)
    for mask in (
        torch.ones(2, 6).bool(),
        causal_mask(6).long(),
        causal_mask(6)[:, :5],
        torch.ones(2, 1, 5, 6).bool(),
    ):
        with pytest.raises(ValueError, match=r"it must be boolean .* and \(6, 6\), or with batch and heads"):
            model(tokens, mask)
    with torch.no_grad(), pytest.raises(ValueError, match=r"and \(6, 6\), or with"):
        model(tokens, causal_mask(6, 7), KVCache(9))
    for mask in (causal_mask(6), causal_mask(6).expand(4, 6, 6), padding_mask(tokens), torch.zeros(6, 6)):
        model(tokens, mask)


def test_see_itself_adds_the_diagonal_alone():
    nothing = torch.zeros(2, 1, 3, 5, dtype=torch.bool)
    assert torch.equal(see_itself(nothing)[1, 0], torch.eye(5, dtype=torch.bool)[2:])
    assert torch.equal(see_itself(causal_mask(4)), causal_mask(4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: causal_mask(3, 2), "3 queries and 2 keys"),
        (lambda: causal_mask(-1), "-1 queries"),
        (lambda: padding_mask(torch.ones(3)), r"real has the shape \(3,\)"),
        (lambda: prefix_mask(7, 5), "prefix is 7; give one or several lengths from 0 to 5"),
        (lambda: prefix_mask(torch.tensor([1, -1]), 5), r"prefix is \[1, -1\]"),
        (lambda: prefix_mask(torch.tensor([1.5]), 5), r"prefix is \[1.5\]"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
