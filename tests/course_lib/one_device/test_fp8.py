"""Linear layers in 8 bits: products as by hand and as by PyTorch's kernel, and a memory that a repeated forward leaves
as it is."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.by_hand import block_formats
from course_lib.by_hand import fp8 as by_hand
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.one_device import fp8
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.recompute import apply_recompute


def tensors(dtype=torch.float64, device="cpu", tokens=160, out=272, into=144):
    torch.manual_seed(0)
    x, w, g = torch.randn(tokens, into), torch.randn(out, into) / 12, torch.randn(tokens, out)
    return [t.to(device, dtype).requires_grad_() for t in (x, w)] + [g.to(device, dtype)]


def three(multiply, **where):
    x, w, g = tensors(**where)
    y = multiply(x, w)
    y.backward(g)
    return y.detach(), x.grad, w.grad


@pytest.mark.parametrize("scaling", fp8.SCALING)
def test_products_are_those_by_hand(scaling):
    how = {"block": 128, "backward": by_hand.E4M3} if scaling == "block" else {}
    layer = by_hand.Linear(nn.Linear(144, 272), 1, **how)

    def multiply(x, w):
        if scaling == "mx":
            return block_formats.Product.apply(x, w, block_formats.mx, block_formats.mx)
        layer.weight_in_8_bits = lambda: layer.w(w)
        return by_hand.Product.apply(x, w, layer)

    ours, hands = (three(one, dtype=torch.float32) for one in (fp8.Fp8Linear(scaling), multiply))
    checked = 2 if scaling == "block" else 3  # by hand, dW is of X as it was kept, in 8 bits
    for one, other in list(zip(ours, hands, strict=True))[:checked]:
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-5)
    for one, other in zip(ours, three(F.linear), strict=True):
        assert 0.01 < (one - other).norm() / other.norm() < 0.06


@pytest.mark.parametrize("scaling", ["tensor", "delayed"])
def test_where_there_is_a_kernel_it_gives_the_same_products(monkeypatch, scaling):
    expected = three(fp8.Fp8Linear(scaling), dtype=torch.float32)
    calls, kernel = [], torch._scaled_mm
    monkeypatch.setattr(fp8, "has_kernel", lambda a, b: True)
    monkeypatch.setattr(torch, "_scaled_mm", lambda *a, **how: calls.append(1) or kernel(*a, **how))
    for one, other in zip(three(fp8.Fp8Linear(scaling), dtype=torch.float32), expected, strict=True):
        # Some CPUs add up in another order; another rounding to 8 bits would differ by a hundredth.
        torch.testing.assert_close(one, other, rtol=1e-6, atol=5e-6)
    assert len(calls) == 3


@pytest.mark.gpu
@pytest.mark.parametrize("scaling", fp8.SCALING)
def test_on_a_gpu(scaling):
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("a GPU with 8-bit arithmetic is needed")
    where = {"dtype": torch.bfloat16, "device": "cuda"}
    x, w, _ = tensors(**where)
    assert fp8.has_kernel(x, w)
    expected = three(fp8.Fp8Linear(scaling))
    for one, other in zip(three(fp8.Fp8Linear(scaling), **where), expected, strict=True):
        assert (one.cpu().double() - other).norm() / other.norm() < 0.02


def gpt():
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(vocab_size=29, max_length=16, num_layers=2, hidden_size=32))


def llama():
    torch.manual_seed(0)
    return Llama(LlamaConfig.tiny(vocab_size=29, num_hidden_layers=2, hidden_size=32, intermediate_size=48))


def trained(make, recompute=None, steps=3, microbatches=2):
    model = make()
    linears = fp8.apply_fp8(model, "delayed")
    if recompute:
        apply_recompute(model, recompute)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randint(29, (steps, microbatches, 4, 17), generator=torch.Generator().manual_seed(0))
    losses = []
    for step in tokens:
        for some in step:
            loss = cross_entropy(model(some[:, :-1]), some[:, 1:])
            loss.backward()
            losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
        for linear in linears:
            linear.next_step()
    return losses, [linear.history for linear in linears], model


@pytest.mark.parametrize("make", [gpt, llama])
def test_recomputation_does_not_remember_twice(make):
    losses, histories, plain = trained(make)
    again, theirs, model = trained(make, recompute="full")
    assert losses == again
    assert histories == theirs
    assert len(histories) == (2 * 6 if make is gpt else 2 * 7)
    assert {len(history) for history in histories} == {3}
    assert all(step.keys() == {fp8.X, fp8.W, fp8.G} for step in histories[0])
    assert list(model.state_dict()) == list(make().state_dict())
    for name, p in plain.state_dict().items():
        assert torch.equal(p, model.state_dict()[name])


def test_the_largest_of_all_microbatches_is_remembered_and_nothing_of_an_evaluation():
    linear, w = fp8.Fp8Linear("delayed"), torch.eye(16, requires_grad=True)
    for largest in (2.0, 5.0, 3.0):
        linear(torch.full((4, 16), largest), w)
    with torch.no_grad():
        linear(torch.full((4, 16), 100.0), w)
    linear.next_step()
    linear.next_step()  # without a forward: nothing happens
    assert [float(step[fp8.X]) for step in linear.history] == [5.0]
    y = linear(torch.full((4, 16), 40.0), w)
    assert float(y.detach().max()) == pytest.approx(5.0)  # cut off
    for _ in range(20):
        linear(torch.ones(4, 16), w)
        linear.next_step()
    assert len(linear.history) == 16


def test_autocast_says_the_dtype_and_what_is_kept_has_16_bits():
    model, kept = gpt(), []
    fp8.apply_fp8(model)
    block = model.blocks[0].mlp
    pack = lambda t: kept.append(t) or t  # noqa: E731
    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = block.up(torch.randn(2, 8, 32))
    assert y.dtype == torch.bfloat16
    assert [t.dtype for t in kept if t.shape == (16, 32)] == [torch.bfloat16]
    y.sum().backward()
    assert block.up.weight.grad.dtype == torch.float32
    assert block.up(torch.randn(0, 32)).shape == (0, 128)


def test_what_it_does_not_know_is_refused():
    with pytest.raises(ValueError, match="scaling must be one of tensor, delayed, block, mx, not rows"):
        fp8.Fp8Linear("rows")
    with pytest.raises(ValueError, match="fp8 needs blocks with linear layers, and Linear has none of"):
        fp8.apply_fp8(nn.Linear(3, 3))


@pytest.mark.parametrize("scaling", fp8.SCALING)
def test_a_rank_without_heads_has_a_linear_layer_of_no_rows(scaling):
    x, weight = torch.randn(2, 3, 8, requires_grad=True), torch.zeros(0, 8, requires_grad=True)
    y = fp8.Fp8Linear(scaling)(x, weight)
    y.sum().backward()
    assert y.shape == (2, 3, 0)
    assert not x.grad.any()
