"""The Triton kernels: right under the interpreter (or on the GPU that is there), compiled for GPUs without one."""

import importlib
import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

from course_lib.attention import flash_kernels as kernels
from course_lib.attention import flash_triton
from course_lib.attention.drop_in import FlashCore
from course_lib.attention.flash import flash_attention
from course_lib.attention.flash_triton import flash_attention_triton

pytest.importorskip("triton", reason="Triton is installed on Linux only")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BF16 = torch.bfloat16

# dtype, batch, heads, kv_heads, rows, keys, size, causal
CASES = [
    (torch.float32, 1, 1, 1, 128, 128, 64, False),  # the tiles divide the length
    (torch.float32, 2, 2, 2, 130, 130, 64, True),  # and here they do not
    (torch.float32, 1, 4, 2, 3, 70, 64, True),  # grouped queries, a cache of earlier keys
    (torch.float32, 1, 2, 1, 150, 70, 128, True),  # multi-query; the first 80 queries see no key
    (BF16, 1, 2, 1, 100, 100, 128, True),
]


@pytest.fixture
def untuned(monkeypatch):
    """One configuration of each kernel, that of the smallest tiles: on a GPU, to tune takes a minute."""
    for kernel in (kernels.forward_kernel, kernels.keys_backward_kernel, kernels.queries_backward_kernel):
        small = min(kernel.configs, key=lambda one: prod(one.kwargs.values()))
        monkeypatch.setattr(kernel, "configs", [small])


def inputs(dtype, batch, heads, kv_heads, rows, keys, size):
    torch.manual_seed(rows)
    shapes = (batch, rows, heads, size), (batch, keys, kv_heads, size), (batch, kv_heads, keys, size)
    q, k, v = (torch.randn(shape, device=DEVICE).to(dtype) for shape in shapes)
    return [x.requires_grad_() for x in (q.transpose(1, 2), k.transpose(1, 2), v)]  # both layouts in memory


@pytest.mark.usefixtures("untuned")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_pytorch_version(case):
    *shape, causal = case
    narrow = inputs(*shape)
    exact = [x.detach().double().requires_grad_() for x in narrow]
    results = []
    for attention, tensors in ((flash_attention_triton, narrow), (flash_attention, exact)):
        O, L = attention(*tensors, causal=causal, return_logsumexp=True)
        torch.manual_seed(1)
        dO, dL = torch.randn(O.shape).to(DEVICE), torch.randn(L.shape).to(DEVICE)
        seen = ~L.isneginf()
        loss = (O * dO).sum() + (L * dL)[seen].sum()
        results.append((O, L[seen], *torch.autograd.grad(loss, tensors)))
        assert O.transpose(1, 2).is_contiguous()
    bound = 2e-2 if case[0] == BF16 else 1e-5
    for got, wanted in zip(*results, strict=True):
        assert got.shape == wanted.shape
        assert (got.double() - wanted).norm() <= bound * wanted.norm()


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_autotuned_on_a_gpu_equals_sdpa(size, causal):
    q, k, v = inputs(BF16, 2, 8, 8, 2000, 2000, size)
    exact = [x.detach().float().requires_grad_() for x in (q, k, v)]
    O, wanted = (
        flash_attention_triton(q, k, v, causal=causal),
        F.scaled_dot_product_attention(*exact, is_causal=causal),
    )
    dO = torch.randn_like(wanted)
    got = O, *torch.autograd.grad(O, (q, k, v), dO.to(BF16))
    for a, b in zip(got, (wanted, *torch.autograd.grad(wanted, exact, dO)), strict=True):
        assert (a.float() - b).norm() <= 2e-2 * b.norm()


@pytest.mark.usefixtures("untuned")
def test_drops_into_a_core_and_takes_an_own_scale():
    q, k, v = inputs(torch.float32, 1, 2, 2, 20, 20, 64)
    core = FlashCore(causal=True, attention=flash_attention_triton)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(core(q, k, v), wanted, rtol=1e-4, atol=1e-5)
    wanted = F.scaled_dot_product_attention(q, k, v, scale=0.3)
    torch.testing.assert_close(flash_attention_triton(q, k, v, scale=0.3), wanted, rtol=1e-4, atol=1e-5)


def test_kernels_compile_for_gpus_that_are_not_here(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("compile_kernels.py")
    run = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    names = ("forward_kernel", "row_sums_kernel", "keys_backward_kernel", "queries_backward_kernel")
    assert [row["kernel"] for row in rows] == [
        names[0],
        *names,
    ]  # sm_80 has the first alone: it takes seconds
    limits = {"sm_80": 163 * 1024, "sm_90": 227 * 1024}  # bytes of shared memory that one program can have
    for row in rows:
        assert row["found"], row
        assert row["cubin"] > 0, row
        assert row["shared"] <= limits[row["target"]], row
        assert row["tensor_cores"] == (row["kernel"] != "row_sums_kernel"), row


def test_what_the_kernels_cannot_do_is_said_in_one_sentence(monkeypatch):
    q = torch.randn(2, 4, 6, 64, device=DEVICE)
    for given, options, words in (
        (q[..., :32], {}, "the kernels take heads of size 64 or 128, not 32."),
        (q.double(), {}, "the kernels take float32, float16 or bfloat16, not torch.float64."),
        (q, {"mask": torch.ones(2, 1, 1, 6).bool()}, "the kernels do not take a mask; flash_attention of"),
        (q, {"dropout_p": 0.1}, "the kernels do not take dropout; flash_attention of"),
        (q, {"scale": -1.0}, "scale is -1.0; the kernels take a number above 0."),
        (q[:, :, :0], {}, "q must have at least one of each, but its shape is (2, 4, 0, 64)."),
        (q.to("meta"), {}, "the kernels cannot run on meta: they need an NVIDIA GPU, or the CPU and Triton's"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as error:
            flash_attention_triton(given, given, given, **options)
        assert str(error.value).startswith(words)
        assert "\n" not in str(error.value)
    # Triton 3.6 and its interpreter, beside a newer NumPy
    if DEVICE == "cpu":
        broken = TypeError("only 0-dimensional arrays can be converted to Python scalars")
        with monkeypatch.context() as patch:
            patch.setattr(flash_triton, "by_token", Mock(side_effect=broken))
            with pytest.raises(
                RuntimeError, match=r"^the interpreter of Triton \S+ needs an older NumPy: pip inst"
            ):
                flash_attention_triton(q, q, q)
    # Where Triton is not installed, both files can be imported, and the call says what is missing.
    names = ("course_lib.attention.flash_kernels", "course_lib.attention.flash_triton")
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    again = importlib.import_module(names[1])
    with pytest.raises(
        ValueError, match=r"^Triton is not installed, which these kernels need; .*pip install triton"
    ):
        again.flash_attention_triton(q, q, q)
    for name in names:
        del sys.modules[name]
