import copy

import pytest
import torch
from torch import nn

from course_lib.one_device.adam import Adam, AdamW, adam_update

OFFICIAL = {Adam: torch.optim.Adam, AdamW: torch.optim.AdamW}


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 1, bias=False))


def groups(model: nn.Sequential) -> list[dict]:
    return [
        {"params": list(model[0].parameters()), "weight_decay": 0.1},
        {"params": [model[2].weight, model[2].bias], "lr": 3e-2, "betas": (0.8, 0.95), "weight_decay": 0.0},
        {"params": list(model[4].parameters()), "eps": 1e-5},
    ]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, i: int) -> float:
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(i))
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def test_first_step_by_hand():
    """At the first step the corrected moments are g and g²: the step is lr * g / (|g| + eps), whatever g is."""
    w, g = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, -20.0, 0.0])
    m, v = torch.zeros(3), torch.zeros(3)
    adam_update(w, g, m, v, 1, lr=0.1)
    assert w.tolist() == pytest.approx([0.9, 1.1, 1.0])
    assert m.tolist() == pytest.approx([0.05, -2.0, 0.0])
    assert v.tolist() == pytest.approx([0.00025, 0.4, 0.0])


@pytest.mark.parametrize("ours", [Adam, AdamW])
def test_equals_torch_over_many_steps_and_groups(ours):
    mine, theirs = make_model(), make_model()
    a, b = ours(groups(mine), lr=1e-2), OFFICIAL[ours](groups(theirs), lr=1e-2)
    for i in range(200):
        assert step(mine, a, i) == pytest.approx(step(theirs, b, i), abs=1e-7)
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-7, rtol=0)
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(a.state[p][name], b.state[q][name], atol=1e-7, rtol=0)


def test_the_two_differ_in_weight_decay_alone():
    models = [make_model() for _ in range(4)]
    optimizers = [kind(m.parameters(), weight_decay=d) for m, kind, d in
                  zip(models, (Adam, AdamW, Adam, AdamW), (0.0, 0.0, 0.1, 0.1), strict=True)]  # fmt: skip
    for i in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer, i)
    plain, plain_w, decayed, decayed_w = (model[0].weight for model in models)
    assert plain.equal(plain_w)
    assert not decayed.equal(decayed_w)


def test_a_flat_shard_is_updated_as_the_whole():
    torch.manual_seed(0)
    whole = [torch.randn(11), torch.randn(11), torch.rand(11), torch.rand(11)]
    cut = [[t[:4].clone() for t in whole], [t[4:].clone() for t in whole]]
    adam_update(*whole, 3, lr=0.1, weight_decay=0.1, decoupled=True)
    for shard in cut:
        adam_update(*shard, 3, lr=0.1, weight_decay=0.1, decoupled=True)
    for i in (0, 2, 3):
        assert torch.cat([cut[0][i], cut[1][i]]).equal(whole[i])


@pytest.mark.parametrize("ours", [Adam, AdamW])
@pytest.mark.parametrize("direction", ["ours to torch", "torch to ours"])
def test_state_dicts_are_exchanged_with_torch(ours, direction):
    kinds = (ours, OFFICIAL[ours]) if direction == "ours to torch" else (OFFICIAL[ours], ours)
    model = make_model()
    before = kinds[0](groups(model))
    for i in range(3):
        step(model, before, i)
    moved = copy.deepcopy(model)
    after = kinds[1](groups(moved))
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    for i in range(3, 6):
        assert step(moved, after, i) == pytest.approx(step(model, before, i), abs=1e-7)


def test_parameters_without_a_gradient_keep_their_value_and_have_no_state():
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = AdamW([("used", used), ("unused", unused)])
    used.sum().backward()
    optimizer.step()
    assert unused.tolist() == [1, 1]
    assert set(optimizer.state) == {used}
    assert optimizer.param_groups[0]["param_names"] == ["used", "unused"]


def test_closure_and_scheduler():
    w = nn.Parameter(torch.ones(1))
    optimizer = Adam([w], lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = w.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 1
    schedule.step()
    assert w.item() == pytest.approx(0.9)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lr": -1.0}, "lr must be at least 0, not -1.0"),
        ({"lr": float("nan")}, "lr must be at least 0, not nan"),
        ({"betas": (0.9, 1.0)}, r"both betas must be at least 0 and below 1, not \(0.9, 1.0\)"),
        ({"eps": -1e-8}, "eps must be at least 0, not -1e-08"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0, not -0.1"),
    ],
)
def test_bad_settings(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        Adam([nn.Parameter(torch.ones(1))], **settings)
    with pytest.raises(ValueError, match=sentence):
        Adam([{"params": [nn.Parameter(torch.ones(1))], **settings}])


def test_sparse_gradient():
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="the gradient is sparse"):
        Adam(table.parameters()).step()
