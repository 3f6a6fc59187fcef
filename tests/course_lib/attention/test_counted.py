"""Attention through a counted fast memory: right, and with the bytes that the simulator predicts, to the byte."""

import pytest
import torch
import torch.nn.functional as F

from course_lib.attention import counted
from course_lib.attention.fast_memory import FastMemory
from course_lib.attention.flash import Tiling
from simulator.predict import attention_io as io

N, SIZE = 45, 8


def inputs(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(N, SIZE).to(dtype) for _ in range(4)]  # q, k, v, dO


def wanted(q, k, v, dO, causal):
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    O = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]
    return O, *torch.autograd.grad(O, (q, k, v), dO.double())


def check(got, exact, dtype):
    bound = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for a, b in zip(got, exact, strict=True):
        assert a.dtype == dtype
        assert (a.double() - b).norm() < bound * b.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("block_q", "block_k"), [(9, 15), (16, 8), (7, 64), (64, 4)])
def test_flash_attention_moves_what_the_simulator_predicts(block_q, block_k, causal, dtype):
    q, k, v, dO = inputs(dtype)
    tiling = Tiling(N, N, block_q, block_k, causal)
    exact = wanted(q, k, v, dO, causal)
    how = {"causal": causal, "itemsize": dtype.itemsize}

    forward, backward = FastMemory(), FastMemory()
    O, L = counted.flash_forward(forward, q, k, v, tiling)
    gradients = counted.flash_backward(backward, q, k, v, O, L, dO, tiling)
    check((O, *gradients), exact, dtype)
    assert forward.moved == io.flash_forward(N, SIZE, block_q, block_k, **how)
    assert backward.moved == io.flash_backward(N, SIZE, block_q, block_k, **how)
    full = min(block_q, N), min(block_k, N)
    assert forward.peak == io.flash_fast_bytes(*full, SIZE, itemsize=dtype.itemsize)
    assert forward.held == backward.held == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_standard_attention_moves_what_the_simulator_predicts(dtype):
    q, k, v, dO = inputs(dtype)
    forward, backward = FastMemory(), FastMemory()
    O, saved = counted.standard_forward(forward, q, k, v)
    check((O, *counted.standard_backward(backward, q, k, v, saved, dO)), wanted(q, k, v, dO, False), dtype)
    assert forward.moved == io.standard_forward(N, SIZE, itemsize=dtype.itemsize)
    assert backward.moved == io.standard_backward(N, SIZE, itemsize=dtype.itemsize)

    mask = torch.full((N, N), -torch.inf).triu(1)
    forward, backward = FastMemory(), FastMemory()
    _, saved = counted.standard_forward(forward, q, k, v, mask=mask, p=0.4)
    dQ, _, dV = counted.standard_backward(backward, q, k, v, saved, dO, p=0.4)
    assert forward.moved == io.standard_forward(N, SIZE, itemsize=dtype.itemsize, masked=True, dropout=True)
    assert backward.moved == io.standard_backward(N, SIZE, itemsize=dtype.itemsize, dropout=True)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    weights = (wide[0] @ wide[1].mT / SIZE**0.5 + mask).softmax(-1) * saved.kept / 0.6
    exact = torch.autograd.grad(weights @ wide[2], wide, dO.double())
    check((dQ, dV), (exact[0], exact[2]), dtype)


def test_a_tile_that_does_not_fit_is_refused_in_one_sentence():
    q, k, v, _ = inputs()
    fits = io.flash_fast_bytes(16, 8, SIZE, itemsize=4)
    counted.flash_forward(FastMemory(fits), q, k, v, Tiling(N, N, 16, 8, True))
    with pytest.raises(ValueError, match=r"^a tile of [\d,]+ bytes does not fit: .*; use smaller blocks\.$"):
        counted.flash_forward(FastMemory(fits - 1), q, k, v, Tiling(N, N, 16, 8, True))
