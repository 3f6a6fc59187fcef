import copy
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.data.digits import load_digits
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.one_device.adam import AdamW
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.precision import LossScaler, MixedPrecision


def digits(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits()
    chosen = slice(64 * step, 64 * (step + 1))
    return images[chosen].flatten(1), labels[chosen]


def make_mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))


def torch_amp(dtype: torch.dtype, steps: int, **scaling) -> tuple[list[float], list[float], nn.Module]:
    """The official way: fp32 parameters, rounded by autocast at each use; torch's optimizer and scaler."""
    model = make_mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16, **scaling)
    losses, scales = [], []
    for step in range(steps):
        x, y = digits(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales, model


# Too large a scale at first, and one that grows every other step until it is too large again.
WILD = {"init_scale": 2.0**24, "growth_interval": 2}


def test_scaler_equals_torch_amp_through_overflow_and_growth():
    losses, scales, reference = torch_amp(torch.float16, 16, **WILD)
    model = make_mlp()
    optimizer, scaler = AdamW(model.parameters(), lr=3e-3), LossScaler(2.0**24, interval=2)
    ours, our_scales, updated = [], [], []
    for step in range(16):
        x, y = digits(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
        scaler.scale_loss(loss).backward()
        updated.append(scaler.step(optimizer))
        ours.append(loss.item())
        our_scales.append(scaler.scale)
    assert our_scales == scales
    assert ours == pytest.approx(losses, abs=1e-7)
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-7, rtol=0)
    assert not updated[0], "the first scale was to overflow"
    assert any(later > earlier for earlier, later in pairwise(scales)), "and to recover"
    assert False in updated[updated.index(True) :], "until it overflows again"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_master_weights_equal_torch_amp(dtype):
    """The same arithmetic: 16-bit products, 16-bit gradients, an fp32 update. Only where fp32 lives differs."""
    losses, _, reference = torch_amp(dtype, 12, **WILD)
    model = make_mlp()
    scaler = LossScaler(2.0**24, interval=2) if dtype == torch.float16 else None
    mixed = MixedPrecision(model, lambda named: AdamW(named, lr=3e-3), dtype, scaler)
    ours = []
    for step in range(12):
        x, y = digits(step)
        loss = F.cross_entropy(model(x.to(dtype)).float(), y)
        mixed.backward(loss)
        mixed.step()
        ours.append(loss.item())
    assert ours == pytest.approx(losses, abs=1e-7)
    for name, p in reference.named_parameters():
        torch.testing.assert_close(mixed.masters[name], p, atol=1e-7, rtol=0)
    assert {p.dtype for p in model.parameters()} == {dtype}


def test_a_skipped_step_changes_nothing_but_the_scale():
    model = make_mlp()
    mixed = MixedPrecision(model, lambda named: AdamW(named), torch.float16, LossScaler(1024.0))
    before = copy.deepcopy(model.state_dict())
    x, y = digits(0)
    mixed.backward(F.cross_entropy(model(x.half()).float(), y) * float("inf"))
    assert mixed.step() is False
    assert mixed.scaler.scale == 512
    assert not mixed.optimizer.state
    assert all(v.equal(before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in (*model.parameters(), *mixed.masters.values()))
    mixed.backward(F.cross_entropy(model(x.half()).float(), y))
    assert mixed.step() is True
    assert mixed.scaler.good_steps == 1


def test_small_updates_are_lost_without_masters():
    """At 1.0 the next bf16 number is 0.0039 below: ten updates of 0.001 are nothing, or 0.01."""
    lost = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    kept = nn.Linear(1, 1, bias=False)
    nn.init.ones_(kept.weight)
    mixed = MixedPrecision(kept, lambda named: torch.optim.SGD(named, lr=1e-3), torch.bfloat16)
    sgd = torch.optim.SGD([lost], lr=1e-3)
    for _ in range(10):
        sgd.zero_grad()
        lost.sum().backward()
        sgd.step()
        mixed.backward(kept(torch.ones(1, dtype=torch.bfloat16)).sum())
        mixed.step()
    assert lost.item() == 1
    assert mixed.masters["weight"].item() == pytest.approx(0.99)
    assert kept.weight.item() == pytest.approx(0.99, abs=0.002)


def test_small_gradients_are_lost_without_scaling():
    """1e-8 is below fp16's smallest number; times 65536 it is not."""
    found = []
    for scale in (1.0, 2.0**16):
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        mixed = MixedPrecision(
            model, lambda named: torch.optim.SGD(named, lr=1.0), torch.float16, LossScaler(scale)
        )
        mixed.backward(model(torch.ones(1, dtype=torch.float16)).float().sum() * 1e-8)
        mixed.step()
        found.append(-mixed.masters["weight"].item())
    assert found == [0, pytest.approx(1e-8, rel=1e-2)]


def test_gpt_with_tied_and_frozen_parameters_and_accumulation():
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(num_layers=1, hidden_size=32))
    model.embedding.positions.requires_grad_(False)
    mixed = MixedPrecision(model, lambda named: AdamW(named, lr=1e-2))
    assert model.head.weight is model.embedding.tokens.weight
    assert "embedding.tokens.weight" in mixed.masters
    assert not {"head.weight", "embedding.positions.weight"} & mixed.masters.keys()
    tokens = torch.randint(256, (4, 33))
    losses = []
    for _ in range(8):
        for part in tokens.chunk(2):
            loss = cross_entropy(model(part[:, :-1]).float(), part[:, 1:]) / 2
            mixed.backward(loss)
        assert mixed.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all(p.equal(mixed.masters[n].bfloat16()) for n, p in mixed.parameters.items())


def test_resumes_where_it_was():
    def run(mixed, model, steps):
        for step in steps:
            x, y = digits(step)
            mixed.backward(F.cross_entropy(model(x.half()).float(), y))
            mixed.step()

    def make():
        model = make_mlp()
        return MixedPrecision(
            model, lambda named: AdamW(named), torch.float16, LossScaler(2.0**20, interval=3)
        ), model

    whole, whole_model = make()
    run(whole, whole_model, range(6))
    half, half_model = make()
    run(half, half_model, range(3))
    rest, rest_model = make()
    rest.load_state_dict(copy.deepcopy(half.state_dict()))
    run(rest, rest_model, range(3, 6))
    assert (rest.scaler.scale, rest.scaler.good_steps) == (whole.scaler.scale, whole.scaler.good_steps)
    assert all(rest.masters[n].equal(whole.masters[n]) for n in whole.masters)
    assert all(p.equal(q) for p, q in zip(rest_model.parameters(), whole_model.parameters(), strict=True))


def test_without_a_scaler_a_gradient_that_is_not_finite_is_an_error():
    model = make_mlp()
    mixed = MixedPrecision(model, lambda named: AdamW(named))
    before = copy.deepcopy(model.state_dict())
    mixed.backward(model(torch.full((1, 64), torch.nan, dtype=torch.bfloat16)).sum())
    with pytest.raises(
        ValueError, match=r"the gradient of 0.weight is not finite; the parameters are as before"
    ):
        mixed.step()
    assert all(v.equal(before[k]) for k, v in model.state_dict().items())
    mixed.backward(model(torch.ones(1, 64, dtype=torch.bfloat16)).sum())
    assert mixed.step(), "the bad gradient is gone"


def test_scale_stops_before_fp32_overflows():
    scaler = LossScaler(2.0**126, interval=1)
    for _ in range(3):
        scaler.update(True)
    assert scaler.scale == 2.0**127


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"scale": 0.0}, "scale must be a positive number, not 0.0"),
        ({"scale": float("inf")}, "scale must be a positive number, not inf"),
        ({"growth": 1.0}, "growth must be more than 1, not 1.0"),
        ({"backoff": 1.5}, "backoff must lie between 0 and 1, not 1.5"),
        ({"interval": 0}, "interval must be at least 1 step, not 0"),
    ],
)
def test_bad_scaler(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        LossScaler(**settings)


def test_bad_dtypes():
    with pytest.raises(ValueError, match=r"dtype must be torch.bfloat16 or torch.float16, not torch.float64"):
        MixedPrecision(make_mlp(), AdamW, torch.float64)
    with pytest.raises(ValueError, match=r"masters are made of fp32 parameters; 0.weight is torch.float16"):
        MixedPrecision(make_mlp().half(), AdamW)
