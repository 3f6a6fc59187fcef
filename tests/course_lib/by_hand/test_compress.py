"""What compression loses comes back: sum of true means = sum of what was given out + what is still kept."""

from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.by_hand.compress import DiLoCo, EightBits, PowerSGD, TopK, decode, encode
from course_lib.compression.bytegrad import MinMax8
from course_lib.compression.diloco import DiLoCo as ProductionDiLoCo
from course_lib.runtime import current_device, launch

SHAPES = [(12, 9), (7,), (3, 4, 5)]
METHODS = {"8 bits": (EightBits, {}), "top-k": (TopK, {"density": 0.2}), "PowerSGD": (PowerSGD, {"r": 2})}
pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []


def parameters():
    return [nn.Parameter(torch.ones(s, dtype=torch.float64, device=current_device())) for s in SHAPES]


def gradients(rank, step):
    draws = torch.Generator().manual_seed(10 * step + rank)
    return [torch.randn(s, generator=draws, dtype=torch.float64).to(current_device()) for s in SHAPES]


def on_a_rank():
    """For each method: how far the sums are apart; and how large the largest error is that is still kept."""
    rank, p = dist.get_rank(), dist.get_world_size()
    found = {}
    for name, (method, settings) in METHODS.items():
        compress = method(parameters(), **settings)
        true, given = [0.0] * len(SHAPES), [0.0] * len(SHAPES)
        for step in range(4):
            for w, g in zip(compress.parameters, gradients(rank, step), strict=True):
                w.grad = g
            compress.after_backward()
            for i, w in enumerate(compress.parameters):
                true[i] = true[i] + sum(gradients(r, step)[i] for r in range(p)) / p
                given[i] = given[i] + w.grad
        apart, kept = [], []
        for i, error in enumerate(compress.residuals):
            dist.all_reduce(total := error.clone())
            missing = total / p
            if name == "8 bits":  # each rank keeps what the sums of its row have lost
                rows = [torch.empty_like(compress.sum_residuals[i]) for _ in range(p)]
                dist.all_gather(rows, compress.sum_residuals[i])
                missing = missing + torch.cat(rows).flatten()[: error.numel()].view_as(error)
            apart.append(float((true[i] - given[i] - missing).abs().max()))
            kept.append(float(missing.abs().max()))
        found[name] = max(apart), max(kept)
    return found | {"low rank": low_rank(), "outer": outer()}


def low_rank():
    """A matrix of rank 2, other factors on each rank, goes through PowerSGD of rank 2p as it is."""
    rank, p = dist.get_rank(), dist.get_world_size()
    w = nn.Parameter(torch.zeros(40, 30, dtype=torch.float64, device=current_device()))
    draws = torch.Generator().manual_seed(rank)
    factors = [torch.randn(n, 2, generator=draws, dtype=torch.float64).to(w.device) for n in (40, 30)]
    w.grad = factors[0] @ factors[1].T
    dist.all_reduce(mean := w.grad.clone())
    PowerSGD([compressed := w], r=2 * p).after_backward()
    return float((compressed.grad - mean / p).abs().max())


def outer():
    """By hand and production, six steps of AdamW that meet every two."""
    rank, ends = dist.get_rank(), []
    for by_hand in (True, False):
        trained = parameters()
        inner = torch.optim.AdamW(trained, lr=0.1)
        if by_hand:
            diloco = DiLoCo(trained, H=2)
        else:
            inner = ProductionDiLoCo(inner, every=2)
        for step in range(6):
            for w, g in zip(trained, gradients(rank, step), strict=True):
                w.grad = g
            inner.step()
            if by_hand:
                diloco.after_update()
        ends.append(torch.cat([w.detach().flatten() for w in trained]))
    return float((ends[0] - ends[1]).abs().max())


@cache
def on_ranks(ranks):
    return launch(on_a_rank, ranks)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_lost_for_good(name, ranks):
    for found in on_ranks(ranks):
        apart, kept = found[name]
        assert apart < 1e-6 if name == "8 bits" else apart < 1e-12  # a row's range travels in fp32
        assert kept > 1e-6  # it did lose something


@pytest.mark.parametrize("ranks", [1, 3])
def test_power_sgd_sends_a_matrix_of_low_rank_as_it_is(ranks):
    assert all(found["low rank"] < 1e-9 for found in on_ranks(ranks))


@pytest.mark.parametrize("ranks", [1, 3])
def test_diloco_equals_that_of_production(ranks):
    assert all(found["outer"] < 1e-9 for found in on_ranks(ranks))


def test_codes_are_those_of_production_and_off_by_half_a_step_at_most():
    rows = torch.randn(3, 50)
    torch.testing.assert_close(encode(rows), MinMax8().encode(rows), rtol=0, atol=0)
    half = (rows.amax(1) - rows.amin(1)) / 510
    assert ((decode(encode(rows), rows.dtype) - rows).abs().amax(1) <= half * 1.001).all()
    same = torch.full((2, 4), 0.7)
    torch.testing.assert_close(decode(encode(same), same.dtype), same)
