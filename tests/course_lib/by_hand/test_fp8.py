"""fp8 by hand: the products of PyTorch's kernel, what an outlier does, and training beside bf16. Equality
of ranks with one device is a row of test_equal.py."""

import pytest
import torch

from course_lib.by_hand import fp8
from course_lib.data.docs import corpus_tokens, language_windows
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.one_device.loop import cross_entropy

DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2]


def layer_and_input(device="cpu", **how):
    torch.manual_seed(0)
    layer = fp8.Linear(torch.nn.Linear(64, 48, bias=False), p=1, **how).to(device)
    return layer, torch.randn(32, 64, device=device, requires_grad=True), torch.randn(32, 48, device=device)


def by_kernel(a, b, scale_a, scale_b):
    """a b^T, of numbers cast by PyTorch itself."""
    a8, b8 = ((t / s).to(dtype) for t, s, dtype in ((a, *scale_a), (b, *scale_b)))
    return torch._scaled_mm(a8, b8.T, scale_a[0], scale_b[0], out_dtype=torch.float32)


def check_three_products(backward, device, **close):
    layer, x, g = layer_and_input(device, backward=backward)
    y = layer(x)
    y.backward(g)
    scale = lambda t, dtype: (t.detach().abs().max() / torch.finfo(dtype).max, dtype)  # noqa: E731
    of_x, of_w, of_g = scale(x, fp8.E4M3), scale(layer.weight, fp8.E4M3), scale(g, backward)
    x_, w, contiguous = x.detach(), layer.weight.detach(), torch.Tensor.contiguous
    for ours, kernels in (
        (y, by_kernel(x_, w, of_x, of_w)),
        (x.grad, by_kernel(g, contiguous(w.T), of_g, of_w)),
        (layer.weight.grad, by_kernel(contiguous(g.T), contiguous(x_.T), of_g, of_x)),
    ):
        torch.testing.assert_close(ours.detach(), kernels, **close)


@pytest.mark.parametrize("backward", DTYPES, ids=str)
def test_the_three_products_are_those_of_the_kernel(backward):
    """Some CPUs add up in another order; another rounding to 8 bits would differ by a hundredth."""
    check_three_products(backward, "cpu", rtol=1e-6, atol=5e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("backward", DTYPES, ids=str)
def test_the_three_products_are_those_of_the_gpus_kernel(backward):
    """It adds up in another order, and with fewer digits."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("a GPU with 8-bit arithmetic is needed")
    check_three_products(backward, "cuda", rtol=1e-2, atol=1e-2)


def test_a_scale_for_each_row_is_that_of_the_kernel():
    _, x, g = layer_and_input()
    scale = fp8.Current(fp8.E4M3, (1, None))
    for a, b in ((x.detach(), torch.randn(16, 64)), (g, torch.randn(80, 48))):
        a8, b8 = scale(a), scale(b)
        flat = [(t.q.flatten(2).flatten(0, 1), t.s.view(-1, 1)) for t in (a8, b8)]
        theirs = torch._scaled_mm(flat[0][0], flat[1][0].T, flat[0][1], flat[1][1].T, out_dtype=torch.float32)
        assert torch.equal(a8.wide(*a.shape) @ b8.wide(*b.shape).T, theirs)


def test_tiles_that_are_not_full_and_tiles_of_zeros():
    x = torch.randn(5, 11)
    x[:3, :4] = 0
    scaled = fp8.Current(fp8.E4M3, (3, 4))(x)
    assert scaled.q.shape == (2, 3, 3, 4)
    for rows in (slice(3), slice(3, 5)):
        for columns in (slice(4), slice(4, 8), slice(8, 11)):
            part = x[rows, columns]
            s = (part.abs().max() / 448).clamp(min=torch.finfo(torch.float32).tiny)
            expected = (part / s).clamp(-448, 448).to(fp8.E4M3).float() * s
            assert torch.equal(scaled.wide(5, 11)[rows, columns], expected)


def test_a_scale_of_yesterday_cuts_off_todays_outlier():
    x = torch.randn(64, 64)
    scale = fp8.Delayed(fp8.E4M3)
    layer = torch.nn.Module()
    layer.x = layer.w = layer.g = scale
    scale(x)
    fp8.remember([layer], 1)
    yesterday = x.abs().max()
    x[0, 0] = 40.0
    wide = scale(x).wide(64, 64)
    assert wide[0, 0] == pytest.approx(float(yesterday))
    fp8.remember([layer], 1)
    assert scale(x).wide(64, 64)[0, 0] == pytest.approx(40.0)


def test_an_outlier_spoils_its_own_tile_alone():
    """One number of 448 among many of about 2^-9, where e4m3 ends: how many become zero, and the error of all others,
    for one scale and for one a tile."""
    torch.manual_seed(0)
    x = torch.randn(32, 1024) * 2**-9
    x[0, 0] = 448.0
    others = x.clone()
    others[0, 0] = 0
    found = {}
    for name, tile in {"one": (None, None), "tiles": (1, 128)}.items():
        wide = fp8.Current(fp8.E4M3, tile)(x).wide(*x.shape)
        wide[0, 0] = 0
        found[name] = float((wide == 0).float().mean()), float((wide - others).norm() / others.norm())
    assert found["one"] == (pytest.approx(0.38, abs=0.02), pytest.approx(0.29, abs=0.02))
    flushed, error = found["tiles"]
    assert (flushed < 0.01, error < 0.06) == (True, True), found


def gpt():
    return GPT(GPTConfig.tiny(max_length=64, num_layers=2, hidden_size=64))


def last_losses(train):
    torch.manual_seed(0)
    samples = language_windows(corpus_tokens(), 64)
    chosen = torch.randperm(len(samples[0]))[: 20 * 8].split(8)
    data = ([t[rows] for t in samples] for rows in chosen)
    losses = [float(loss) for loss, _ in train(gpt(), data, torch.optim.Adam, cross_entropy)]
    return sum(losses[-5:]) / 5


def bf16(model, data, make_optimizer, loss_fn):
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in data:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_fn(model(inputs).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), None


def test_it_learns_as_in_16_bits():
    """20 steps: the mean of the last five losses is that of bf16 within 0.02."""
    expected = last_losses(bf16)
    for name in ("delayed", "blocks"):
        loss = last_losses(lambda *args, how=fp8.RUNGS[name]: fp8.train(*args, p=1, **how))
        assert abs(loss - expected) < 0.02, name
