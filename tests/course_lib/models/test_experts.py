"""The loss that keeps experts equally busy: transformers' on one sequence, and what training with it does."""

import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from course_lib.models.experts import balance_loss, imbalance
from course_lib.models.mixtral import Mixtral, MixtralConfig

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
