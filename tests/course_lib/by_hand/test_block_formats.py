"""Block formats by hand: tables worked out by hand, PyTorch's casts, torchao where it is installed, and chance."""

from functools import partial

import pytest
import torch

from course_lib.by_hand import block_formats as formats
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.one_device.loop import cross_entropy

EVERY_BF16 = torch.arange(2**16).to(torch.int16).view(torch.bfloat16).float()
EVERY_BF16 = EVERY_BF16[EVERY_BF16.isfinite()]
TABLE = {
    "e2m1": {0.25: 0, 0.26: 0.5, 0.75: 1, 1.25: 1, 1.75: 2, 2.5: 2, 3.5: 4, 5.0: 4, 5.1: 6, 7.0: 6},
    "e4m3": {17.0: 16, 19.0: 20, 464.0: 448, 2**-10: 0, 3 * 2**-10: 2**-8, 1.0625: 1},
    "e5m2": {9.0: 8, 11.0: 12, 1e6: 57344, 2**-17: 0, 3 * 2**-17: 2**-15},
    "e3m2": {27.0: 28, 100.0: 28, 0.09: 0.0625},
    "e2m3": {7.2: 7.0, 7.4: 7.5, 0.06: 0},
}


@pytest.mark.parametrize("element", TABLE)
def test_a_number_is_cast_as_by_hand(element):
    for x, expected in TABLE[element].items():
        both = formats.cast(torch.tensor([x, -x]), element)
        assert both.tolist() == [expected, -expected], x


@pytest.mark.parametrize(("element", "dtype"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_every_number_is_cast_as_by_pytorch(element, dtype):
    most = torch.finfo(dtype).max
    assert most == formats.FORMATS[element][2]
    theirs = EVERY_BF16.clamp(-most, most).to(dtype).float()
    assert torch.equal(formats.cast(EVERY_BF16, element), theirs)


def test_blocks_are_scaled_as_by_hand():
    x = torch.zeros(2, 40)
    x[0, :3] = torch.tensor([3.0, 0.4, -1.3])  # s = 1/2: 6, 0.8 and 2.6 become 6, 1 and 3
    x[0, 32] = 7.0  # the next block; s = 1, and 7 is cut
    x[1, 0] = 2.0**-100
    expected = torch.zeros(2, 40)
    expected[0, :3] = torch.tensor([3.0, 0.5, -1.5])
    expected[0, 32], expected[1, 0] = 6.0, 2.0**-100
    assert torch.equal(formats.mx(x, "e2m1"), expected)
    assert formats.mx(torch.full((1, 32), 500.0)).tolist() == [[448.0] * 32]

    x = torch.zeros(1, 40)
    x[0, 0] = 6 * 448.0  # so the tensor's scale is 1, and this block's 448
    x[0, 16:18] = torch.tensor([3.0, 0.7])  # s = 1/2: 6, and 1.4 becomes 1.5
    x[0, 32] = 6 * 17.0  # s = 17 becomes 16 in e4m3: 6.375 is cut to 6
    found = formats.nvfp4(x)[0]
    assert found[[0, 16, 17, 32]].tolist() == [6 * 448.0, 3.0, 0.75, 96.0]
    assert found.count_nonzero() == 4
    assert not formats.nvfp4(torch.zeros(3, 16)).any()


def test_blocks_are_those_of_torchao():
    for module in ("mx_tensor", "nvfp4_tensor"):
        pytest.importorskip(f"torchao.prototype.mx_formats.{module}", reason="torchao 0.18 is not installed")
    from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor

    torch.manual_seed(0)
    x = torch.randn(64, 256) * torch.randn(64, 256).mul(3).exp()
    x[0], x[1, :32] = 0, 0
    dtypes = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e2m1": torch.float4_e2m1fn_x2}
    for element, dtype in dtypes.items():
        scale, q = mx_tensor.to_mx(x, dtype, 32)
        assert torch.equal(formats.mx(x, element), mx_tensor.to_dtype(q, scale, dtype, 32, torch.float32))
    scale = nvfp4_tensor.per_tensor_amax_to_scale(x.abs().max())
    theirs = nvfp4_tensor.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale).dequantize(torch.float32)
    assert torch.equal(formats.nvfp4(x), theirs)


@pytest.mark.parametrize("held", [formats.bf16, partial(formats.cast, element="e2m1", chance=True)])
def test_rounded_by_chance_it_is_right_in_the_mean(held):
    torch.manual_seed(0)
    for x in (1.3, -0.2, 2.0):
        rounded = held(torch.full((100_000,), x))
        assert len(rounded.unique()) == (1 if x == 2.0 else 2)
        assert float(rounded.double().mean()) == pytest.approx(x, abs=5e-3)


def test_small_steps_add_up_only_by_chance():
    """A hundred of 1e-4, down from 1: to the nearest it stays 1, whose neighbour below is 0.996."""
    torch.manual_seed(0)
    found = {}
    for chance in (False, True):
        w = torch.ones(4096)
        for _ in range(100):
            w = formats.bf16(w - 1e-4, chance)
        assert torch.equal(w, w.bfloat16().float())
        found[chance] = float(w.mean())
    assert found[False] == 1.0
    assert found[True] == pytest.approx(0.99, abs=5e-4)


def test_it_learns_in_few_bits():
    """Ten steps on one batch: the loss falls from 3.36 to 2.78; this far is it from that of 32 bits at most."""
    most = {"mxfp8": 0.005, "mxfp4": 0.03, "nvfp4": 0.03, "bf16 weights, rounded by chance": 0.01}
    torch.manual_seed(0)
    tokens = torch.randint(29, (8, 17))
    losses = {}
    for name, rung in {"32 bits": {}, **formats.RUNGS}.items():
        torch.manual_seed(1)
        model = GPT(GPTConfig.tiny(vocab_size=29, max_length=16, num_layers=2, hidden_size=48))
        steps = formats.train(
            model, [(tokens[:, :-1], tokens[:, 1:])] * 10, torch.optim.Adam, cross_entropy, **rung
        )
        losses[name] = [float(loss) for loss, _ in steps]
    exact = losses.pop("32 bits")
    assert exact[0] - exact[-1] > 0.5
    for name, loss in losses.items():
        assert loss != exact
        assert abs(loss[-1] - exact[-1]) < most[name], (name, loss, exact)
