"""The norm over all ranks, and scaling gradients to it, beside PyTorch's own clipping."""

import math

import pytest
import torch
import torch.distributed as dist

from course_lib.runtime import launch
from course_lib.runtime.gradient_norm import clip_grad_norm, grad_norm, scale_gradients


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("max_norm", [0.3, 1e3, float("inf")])
def test_scales_as_pytorch_does(dtype, max_norm):
    torch.manual_seed(0)
    ours = [torch.randn(7, 5).to(dtype), torch.randn(11).to(dtype)]
    theirs = [torch.nn.Parameter(torch.zeros_like(g)) for g in ours]
    for p, g in zip(theirs, ours, strict=True):
        p.grad = g.clone()
    norm = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    scale_gradients(ours, norm, max_norm)
    for p, g in zip(theirs, ours, strict=True):
        torch.testing.assert_close(g, p.grad)


def test_the_factor_is_not_rounded_to_16_bits():
    gradient = torch.linspace(1, 2, 129).bfloat16()
    exact, rounded = (gradient.double() * 0.7051).bfloat16(), gradient * torch.tensor(0.7051).bfloat16()
    scale_gradients([gradient], torch.tensor(1.0), 0.7051)
    torch.testing.assert_close(gradient, exact, rtol=0, atol=0)
    assert not torch.equal(gradient, rounded)


def norms(scale):
    """Of one gradient of 12 numbers that is cut, one that all ranks have, and one that two of the three have."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cut, whole, tied = (torch.arange(1.0, 13, dtype=torch.bfloat16) * scale * n for n in (1, 2, 3))
    held = [(cut.chunk(ranks)[rank].clone(), 1), (whole, ranks), (torch.empty(0), 1)]
    held += [(tied, 2)] if rank else []
    before = [gradient.clone() for gradient, _ in held]
    try:
        norm = clip_grad_norm(held, 1.0, None, "cpu").item()
    except ValueError as error:
        same = all(torch.equal(a, b) for a, (b, _) in zip(before, held, strict=True))
        return str(error), same, len(held)
    return norm, grad_norm(held, None, "cpu").item(), len(held)


def test_each_element_counts_once_whoever_holds_it():
    expected = math.sqrt(sum((n * i) ** 2 for n in (1, 2, 3) for i in range(1, 13)))
    for norm, after, _ in launch(norms, 3, args=(1.0,)):
        assert norm == pytest.approx(expected, rel=1e-6), "a norm in 16 bits would have three digits"
        assert after == pytest.approx(1, rel=1e-2), "the gradients have 16 bits"
    for sentence, same, _ in launch(norms, 3, args=(math.inf,)):
        assert sentence.startswith("the norm of the gradient is inf, so no gradient was changed")
        assert same
