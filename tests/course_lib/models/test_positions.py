"""Each scheme against its paper's formula, or transformers' implementation of it."""

import math

import pytest
import torch
from transformers import T5Config
from transformers.models.falcon.modeling_falcon import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from course_lib.models.masks import causal_mask
from course_lib.models.positions import (
    RelativeBias,
    RotaryPositions,
    alibi_bias,
    alibi_slopes,
    sinusoidal_positions,
)


def test_sinusoidal_positions_follow_the_formula():
    table = sinusoidal_positions(50, 8)
    assert table.shape == (50, 8)
    for m in range(50):
        for i in range(4):
            angle = m / 10000 ** (2 * i / 8)
            assert table[m, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[m, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("buckets", [32, 8])
def test_the_relative_bias_equals_t5s(buckets):
    torch.manual_seed(0)
    config = T5Config(
        d_model=12, num_heads=3, d_kv=4, is_decoder=True,
        relative_attention_num_buckets=buckets, relative_attention_max_distance=40,
    )  # fmt: skip
    theirs, ours = (
        T5Attention(config, has_relative_attention_bias=True, layer_idx=0),
        RelativeBias(3, buckets, 40),
    )
    torch.nn.init.normal_(theirs.relative_attention_bias.weight)
    ours.bias.load_state_dict(theirs.relative_attention_bias.state_dict())
    seen = causal_mask(90)
    torch.testing.assert_close(ours(90)[:, seen], theirs.compute_bias(90, 90)[0][:, seen])
    assert (ours(90)[:, ~seen] == -math.inf).all()
    torch.testing.assert_close(ours(2, 90), ours(90)[:, -2:])


def test_alibi_equals_transformers_up_to_a_constant_of_each_row():
    for heads in (1, 4, 6, 8, 12):
        theirs = build_alibi_tensor(torch.ones(1, 9), heads, torch.float32)  # slope · key, in bfloat16
        ours = alibi_bias(heads, 9)
        last = ours[:, -1] - ours[:, -1, :1]
        torch.testing.assert_close(last, theirs[:, 0] - theirs[:, 0, :1], rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(ours.softmax(-1)[:, :3, :3], alibi_bias(heads, 3).softmax(-1))
    torch.testing.assert_close(alibi_slopes(8), torch.tensor([0.5**i for i in range(1, 9)]))
    torch.testing.assert_close(alibi_bias(4, 1, 6), alibi_bias(4, 6)[:, -1:])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.0])
def test_rope_keeps_lengths_and_depends_on_distance_alone(fraction, interleaved):
    torch.manual_seed(0)
    rope = RotaryPositions(8, 100.0, fraction, interleaved)
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    at = lambda x, m: rope(x, positions=torch.tensor([m]))[0]  # noqa: E731
    near, far = (at(q, 3 + m) * at(k, m) for m in (0, 40))
    torch.testing.assert_close(near.sum(), far.sum(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(at(q, 9).norm(), q.norm(), rtol=1e-6, atol=1e-6)
    if fraction:
        assert abs((at(q, 5) * at(k, 0)).sum() - near.sum()) > 1e-3
    x = torch.randn(2, 3, 5, 8)
    rows = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 9, 0]])
    whole = rope(x, positions=rows)[0]
    for i in range(2):
        torch.testing.assert_close(whole[i], rope(x[i : i + 1], positions=rows[i])[0][0])


def test_rope_turns_by_the_papers_matrix():
    x = torch.randn(1, 1, 4, 6)
    turned = RotaryPositions(6, 50.0, interleaved=True)(x)[0][0, 0]
    for m in range(4):
        for i in range(3):
            angle = m * 50.0 ** (-2 * i / 6)
            a, b = x[0, 0, m, 2 * i].item(), x[0, 0, m, 2 * i + 1].item()
            assert turned[m, 2 * i] == pytest.approx(a * math.cos(angle) - b * math.sin(angle), abs=1e-5)
            assert turned[m, 2 * i + 1] == pytest.approx(a * math.sin(angle) + b * math.cos(angle), abs=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sinusoidal_positions(4, 5), "hidden_size is 5; sines and cosines come in pairs"),
        (lambda: RelativeBias(2, 32, 16), "32 buckets up to the distance 16"),
        (lambda: alibi_slopes(0), "heads is 0"),
        (lambda: alibi_bias(2, 5, 3), "5 queries and 3 keys"),
        (lambda: RotaryPositions(6, 10.0, 0.5), "a fraction of 0.5 of 6 entries are 3; RoPE turns pairs"),
        (lambda: RotaryPositions(8, 10.0, 2.0), "a fraction of 2.0"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
