"""Experts by hand: what is sent, what is dropped, and that a bias brings balance. Equality with one device is a row of
test_equal.py."""

import dense_experts
import pytest
import torch
import torch.distributed as dist

from course_lib.by_hand import experts
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import current_device, launch
from simulator.predict.expert_traffic import routed_traffic

E, K, HIDDEN, BATCH = 7, 3, 24, 12
CASES = [{}, {"capacity": 0.8}]
pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []


def model():
    torch.manual_seed(0)
    config = GPTConfig.tiny(vocab_size=29, max_length=8, num_layers=2, num_heads=4, hidden_size=HIDDEN)
    return GPT(config).double().to(current_device())


def batch(rank=0, ranks=1):
    tokens = torch.randint(29, (BATCH, 9), generator=torch.Generator().manual_seed(1))
    return [t.chunk(ranks)[rank].to(current_device()) for t in (tokens[:, :-1], tokens[:, 1:])]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def sent_by_this_rank():
    found = []
    for case in CASES:
        steps = experts.train(
            model(), [batch(dist.get_rank(), dist.get_world_size())], sgd, cross_entropy, E=E, k=K, **case
        )
        with record_traffic() as log:
            next(steps)
        found.append(log.traffic)
    return found


def routed_by_one_device(case, ranks):
    """Of each layer, what each rank would send to each expert: its samples are the next part of the batch."""
    whole = model()
    next(dense_experts.train(whole, [batch()], sgd, cross_entropy, E=E, k=K, **case))
    return [
        torch.stack([part.sum((0, 1)) for part in block.mlp.kept_mask.chunk(ranks)]).tolist()
        for block in whole.blocks
    ]


def test_every_byte_is_predicted_from_one_devices_routing():
    ranks = 3  # of two, a half of the bytes is sent, and a half is received
    for rank, found in enumerate(launch(sent_by_this_rank, ranks)):
        for case, traffic in zip(CASES, found, strict=True):
            layers = routed_by_one_device(case, ranks)
            predicted = sum((routed_traffic(layer, HIDDEN, rank, 8) for layer in layers[1:]),
                            routed_traffic(layers[0], HIDDEN, rank, 8))  # fmt: skip
            for collective in ("all-to-all", "all-gather"):
                assert traffic.of(collective).sent == predicted.of(collective).sent
                assert traffic.of(collective).calls == predicted.of(collective).calls


def layer_and_tokens(**settings):
    layer = experts.Experts(model().blocks[0].mlp, E=E, k=K, **settings)
    x = torch.randn(5, 8, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return layer, x.to(current_device())


def test_an_expert_takes_no_more_than_its_capacity_and_a_token_without_expert_gets_zeros():
    layer, x = layer_and_tokens(capacity=0.2)
    out = layer(x).flatten(0, 1)
    most = -(-0.2 * 40 * K // E)
    assert int(layer.kept.max()) == most < int(layer.load.max())
    _, _, _, kept = dense_experts.route(layer, x)
    nowhere = kept.sum((1, 2)) == 0
    assert nowhere.any()
    assert not out[nowhere].any()
    assert out[~nowhere].any(1).all()


def test_the_bias_changes_who_is_chosen_and_not_how_much_it_counts():
    layer, x = layer_and_tokens()
    before = layer(x)
    layer.bias += 5.0  # for all alike
    torch.testing.assert_close(layer(x), before)
    layer.bias[:K] += 5.0
    layer(x)
    assert layer.load.tolist() == [40] * K + [0] * (E - K)


def test_a_bias_brings_balance():
    """By itself: nothing else learns. The largest load over the mean, after the first of 60 steps and the last."""
    whole, found = model(), []
    still = lambda parameters: torch.optim.SGD(parameters, lr=0.0)  # noqa: E731
    settings = {"E": E, "k": K, "alpha": 0.0, "u": 0.002}
    for _ in experts.train(whole, [batch()] * 60, still, cross_entropy, experts.Experts, **settings):
        found.append(max(float(b.mlp.load.max() / b.mlp.load.mean()) for b in whole.blocks))
    assert found[0] > 1.7
    assert found[-1] < 1.1
