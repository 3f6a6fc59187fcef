"""The loss that keeps experts equally busy: transformers' on one sequence, and what training with it does. And the
capacity of experts: beside a loop over tokens, and what a token cannot see."""

import math

import pytest
import torch
import torch.nn.functional as F
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from course_lib.models.experts import balance_loss, imbalance
from course_lib.models.mixtral import Mixtral, MixtralConfig, MixtralMLP

E, K = 6, 2


def test_of_one_sequence_it_is_transformers_loss_over_k():
    logits = torch.randn(11, E, dtype=torch.float64)
    p = logits.softmax(-1)
    ours = imbalance(3 * p, p.topk(K).indices, 1)  # as of sigmoids, which do not add up to 1
    torch.testing.assert_close(ours, load_balancing_loss_func((logits,), E, K).double() / K)


def test_it_is_1_a_sequence_where_all_are_alike_and_experts_over_k_where_a_few_get_all():
    even = torch.full((4 * E, E), 1 / E)
    in_turn = (torch.arange(4 * E)[:, None] + torch.arange(K)) % E
    torch.testing.assert_close(imbalance(even, in_turn, 4), torch.tensor(4.0))
    few = torch.eye(E)[:K].mean(0).expand(4 * E, E)
    torch.testing.assert_close(imbalance(few, torch.arange(K).expand(4 * E, K), 4), torch.tensor(4.0 * E / K))


def test_a_router_that_is_trained_with_it_alone_balances():
    tokens = torch.randint(31, (4, 16), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = Mixtral(MixtralConfig.tiny(vocab_size=31, num_hidden_layers=1, balance_loss=1.0))
    gate = model.model.layers[0].mlp.gate
    torch.nn.init.normal_(gate.weight, std=0.5)
    optimizer, losses = torch.optim.Adam(gate.parameters(), lr=1e-2), []
    for _ in range(60):
        model(tokens)
        losses.append(balance_loss(model))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[0] > 1.4
    assert 1 < losses[-1] < 1.1


# ---- capacity ---------------------------------------------------------------------------------------------------


def layer_and_tokens(factor):
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 4, "num_local_experts": E, "num_experts_per_tok": K}
    layer = MixtralMLP(MixtralConfig.tiny(**sizes, capacity_factor=factor)).double()
    for p in layer.parameters():
        torch.nn.init.normal_(p)
    return layer, torch.randn(3, 10, 8, dtype=torch.float64, requires_grad=True)


def token_by_token(layer, x, factor):
    """One after the other, each asks its experts, most probable first; an expert that is full says nothing."""
    rows, dropped = [], 0
    for sequence in x:
        room = [math.ceil(factor * len(sequence) * K / E)] * E
        for token in sequence:
            p = torch.softmax(layer.gate.weight @ token, 0)
            best = sorted(range(E), key=lambda e: -p[e])[:K]
            row = torch.zeros_like(token)
            for e in best:
                if room[e]:
                    gate, up = (layer.experts.gate_up_proj[e] @ token).chunk(2)
                    row = row + p[e] / p[best].sum() * (layer.experts.down_proj[e] @ (F.silu(gate) * up))
                else:
                    dropped += 1
                room[e] = max(0, room[e] - 1)
            rows.append(row)
    return torch.stack(rows).view_as(x), dropped


@pytest.mark.parametrize("factor", [0.1, 0.7, 1.25, 3.0])
def test_with_a_capacity_output_and_gradients_are_those_of_a_loop_over_tokens(factor):
    layer, x = layer_and_tokens(factor)
    expected, dropped = token_by_token(layer, x, factor)
    assert (dropped > 0) == (factor < E / K), "a sequence's tokens all fit where an expert has room for each"
    ours = layer(x)
    assert layer.chosen.numel() - int(layer.sizes.sum()) == dropped
    inputs = [x, *layer.parameters()]
    for mine, other in zip(
        (ours, *torch.autograd.grad(ours.square().sum(), inputs)),
        (expected, *torch.autograd.grad(expected.square().sum(), inputs)),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-9)


def test_no_later_token_and_no_other_sequence_decides_what_is_dropped():
    layer, x = layer_and_tokens(0.7)
    changed = x.detach().clone()
    changed[0, 6:], changed[1:] = torch.randn(4, 8), torch.randn(2, 10, 8)
    torch.testing.assert_close(layer(changed)[0, :6], layer(x)[0, :6], rtol=0, atol=1e-12)


def test_nothing_is_dropped_in_evaluation():
    layer, x = layer_and_tokens(0.1)
    expected, _ = token_by_token(layer, x, 100)
    torch.testing.assert_close(layer.eval()(x), expected)


def test_a_capacity_factor_must_be_more_than_0():
    with pytest.raises(ValueError, match=r"^capacity factor must be a number more than 0, not 0$"):
        layer_and_tokens(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_leaves_64_bits_as_they_are(dtype):
    model = Mixtral(MixtralConfig.tiny(vocab_size=31, num_hidden_layers=1)).to(dtype)
    tokens = torch.randint(31, (4, 16), generator=torch.Generator().manual_seed(0))
    plain = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(tokens), plain) == (dtype == torch.float64)
