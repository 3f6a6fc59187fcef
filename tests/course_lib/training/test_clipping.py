"""Scaling gradients, beside PyTorch's own clipping."""

import pytest
import torch

from course_lib.training.clipping import scale_gradients


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
