"""ZeRO is a ``torch.optim.Optimizer``: what PyTorch does with an optimizer works on it, or is refused."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, AdamW

from course_lib.data_parallel.flat import FlatParameters
from course_lib.data_parallel.zero import ShardedUpdate, Zero1, Zero2
from course_lib.data_parallel.zero3 import Zero3
from course_lib.runtime import current_device, launch

STAGES = (Zero1, Zero2, Zero3)


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(current_device())


def data():
    """(rank, sample, feature): the slice of each rank."""
    return torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1)).to(current_device())


def each(run, kinds=STAGES):
    """What ``run(kind)`` returns, for every kind on every rank."""
    return [found for rank in launch(lambda: [run(kind) for kind in kinds], ranks=2) for found in rank]


def difference(zero, one):
    got = zero.model_state_dict()
    return max(float((got[name] - p.cpu()).abs().max()) for name, p in one.state_dict().items())


def one_device_step(one, optimizer, **clip):
    optimizer.zero_grad()
    (sum(one(x).square().sum() for x in data()) / 2).backward()
    if clip:
        nn.utils.clip_grad_norm_(one.parameters(), **clip)
    optimizer.step()


def scheduled(kind):
    model, one = make(), make()
    zero, plain = kind(model, AdamW, lr=0.1), AdamW(one.parameters(), lr=0.1)
    assert isinstance(zero, torch.optim.Optimizer)
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5) for o in (zero, plain)]
    losses = []
    for _ in range(3):

        def closure():
            zero.zero_grad(set_to_none=True)
            loss = model(data()[dist.get_rank()]).square().sum()
            loss.backward()
            return loss

        losses.append(float(zero.step(closure)))
        one_device_step(one, plain)
        for scheduler in schedulers:
            scheduler.step()
    assert losses[0] > losses[-1]
    return zero.param_groups[0]["lr"], difference(zero, one)


def test_schedulers_and_closures():
    for lr, far in each(scheduled, (ShardedUpdate, *STAGES)):
        assert lr == 0.1 * 0.5**3
        assert far < 1e-6


def clipped(kind):
    """By torch's own function, on what the optimizer updates; and by max_norm."""
    model, one, other = make(), make(), make()
    zero, plain = kind(model, SGD, lr=0.1), SGD(one.parameters(), lr=0.1)
    by_itself = kind(other, SGD, lr=0.1, max_norm=0.5)
    for _ in range(2):
        for m, o in ((model, zero), (other, by_itself)):
            m(data()[dist.get_rank()]).square().sum().backward()
            if o is zero:
                nn.utils.clip_grad_norm_([p for group in zero.param_groups for p in group["params"]], 0.5)
            o.step()
        one_device_step(one, plain, max_norm=0.5)
    return difference(zero, one), difference(by_itself, one)


def test_clipping_takes_the_norm_over_all_shards():
    for both in each(clipped):
        assert max(both) < 1e-6


def clip_the_models_gradients(kind):
    model = make()
    zero = kind(model, SGD, lr=0.1)
    model(data()[dist.get_rank()]).square().sum().backward()
    with pytest.raises(
        ValueError, match="max_norm, or with clip_grad_norm_ on the parameters in its param_groups"
    ):
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    with pytest.raises(ValueError, match="clear it with the optimizer's zero_grad"):
        model.zero_grad(set_to_none=False)
    zero.step()


def test_what_would_silently_clip_nothing_is_refused():
    each(clip_the_models_gradients)


def cleared_by_the_model(kind):
    """``model.zero_grad()`` drops the gradients of the first backward here, as on one device."""
    model, one = make(), make()
    zero, plain = kind(model, SGD, lr=0.1), SGD(one.parameters(), lr=0.1)
    (1000 * model(data()[dist.get_rank()])).square().sum().backward()
    model.zero_grad()
    model(data()[dist.get_rank()]).square().sum().backward()
    zero.step()
    one_device_step(one, plain)
    return difference(zero, one)


def test_the_models_zero_grad_clears_the_shards():
    assert max(each(cleared_by_the_model)) < 1e-6


def scaled(kind):
    """One step overflows on one rank only; every rank must skip it and lower the scale."""
    model, one = make(), make()
    zero, plain = kind(model, SGD, lr=0.1), SGD(one.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(current_device().type, init_scale=8.0, growth_interval=100)
    for overflows in (False, True, False):
        zero.zero_grad()
        loss = model(data()[dist.get_rank()]).square().sum()
        if overflows and dist.get_rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(zero)
        nn.utils.clip_grad_norm_([p for group in zero.param_groups for p in group["params"]], 0.5)
        scaler.step(zero)
        scaler.update()
        if not overflows:
            one_device_step(one, plain, max_norm=0.5)
    return scaler.get_scale(), difference(zero, one)


def test_grad_scaler_skips_on_all_ranks_together():
    for scale, far in each(scaled):
        assert scale == 4.0
        assert far < 1e-6


def loads_into_a_plain_optimizer(kind):
    model = make()
    zero = kind(model, AdamW, lr=0.1)
    one = make()
    plain = AdamW(one.parameters(), lr=0.1)
    model(data()[dist.get_rank()]).square().sum().backward()
    zero.step()
    alone = make()
    alone.load_state_dict(zero.model_state_dict())
    optimizer = AdamW(alone.parameters(), lr=7.0)
    optimizer.load_state_dict(copy.deepcopy(zero.state_dict()))
    one_device_step(one, plain)
    one_device_step(one, plain)
    one_device_step(alone, optimizer)
    return max(float((p - q).abs().max()) for p, q in zip(alone.parameters(), one.parameters(), strict=True))


def test_an_ordinary_optimizer_loads_the_state():
    assert max(each(loads_into_a_plain_optimizer)) < 1e-6


def mixed_dtypes():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).bfloat16()).to(current_device())
    zero = ShardedUpdate(model, SGD, lr=0.1)
    with pytest.raises(ValueError, match=r"both would hold torch.bfloat16 and torch.float32"):
        FlatParameters([p.detach() for p in model.parameters()], "both")
    return [p.dtype for p in model.parameters()], {flat.shard.dtype for flat in zero.flats}


def test_no_parameter_is_cast_silently():
    for of_model, of_shards in launch(mixed_dtypes, ranks=2):
        assert of_model == [torch.float32] * 2 + [torch.bfloat16] * 2
        assert of_shards == {torch.float32, torch.bfloat16}
