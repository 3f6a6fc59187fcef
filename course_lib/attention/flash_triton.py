"""FlashAttention by Triton kernels as an autograd function: the checks, the grids, and what is saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from course_lib.attention.checks import check_heads
from course_lib.attention.flash_kernels import (
    INTERPRETED,
    forward_kernel,
    keys_backward_kernel,
    queries_backward_kernel,
    row_sums_kernel,
    triton,
)

SIZES = (64, 128)  # of a head
LOG2_E = math.log2(math.e)


class FlashAttentionTriton(torch.autograd.Function):
    """As ``flash.FlashAttention``: saves q, k, v, O and L."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        q, k, v = by_token(q), by_token(k), by_token(v)
        batch, heads, rows, _ = q.shape
        O = by_token(torch.empty_like(q))
        L = q.new_empty(batch, heads, rows, dtype=torch.float32)
        with on_device(q):
            numbers, options = arguments(q, k, causal)
            forward_kernel[per_block("BLOCK_Q", rows, batch * heads)](
                q, k, v, O, L, scale * LOG2_E, *numbers, **options
            )
        ctx.save_for_backward(q, k, v, O, L)
        ctx.causal, ctx.scale = causal, scale
        return O, L

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dO: Tensor, dL: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, O, L = ctx.saved_tensors
        dO = by_token(dO)
        (batch, heads, rows, size), (_, kv_heads, keys, _) = q.shape, k.shape
        dQ, dK, dV = (by_token(torch.empty_like(x)) for x in (q, k, v))
        D = torch.empty_like(L)
        L = (L * LOG2_E).masked_fill(L.isneginf(), torch.inf)  # a row without keys: exp2(S - L) is 0
        with on_device(q):
            row_sums_kernel[triton.cdiv(rows, 64), batch * heads](
                O, dO, D, heads, rows, SIZE=size, BLOCK_Q=64
            )
            D -= dL  # the gradient of L is subtracted in the same place as D
            numbers, options = arguments(q, k, ctx.causal)
            numbers = (ctx.scale, ctx.scale * LOG2_E, *numbers)
            keys_backward_kernel[per_block("BLOCK_K", keys, batch * kv_heads)](
                q, k, v, dO, L, D, dK, dV, *numbers, **options
            )
            queries_backward_kernel[per_block("BLOCK_Q", rows, batch * heads)](
                q, k, v, dO, L, D, dQ, *numbers, **options
            )
        return dQ, dK, dV, None, None


def flash_attention_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    return_logsumexp: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """``flash.flash_attention`` by Triton kernels: the same arguments and results, for head sizes 64 and 128.

    Tensors that are views of ``(batch, length, heads, size)``, as linear layers leave them, are read without a copy.

    Raises:
        ValueError: what the kernels do not have (another head size, a mask, dropout, float64), or a device on which
            they cannot run; shapes that do not belong together.
        RuntimeError: an old Triton's interpreter beside a NumPy that it does not know.
    """
    check_heads(q, k, v)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    check_kernels(q, mask, dropout_p, scale)
    try:
        O, L = FlashAttentionTriton.apply(q, k, v, causal, scale)
    except Exception as error:
        if INTERPRETED and "0-dimensional arrays" in str(error):
            raise RuntimeError(
                f"the interpreter of Triton {triton.__version__} needs an older NumPy: pip install 'numpy<2.4'"
            ) from error
        raise
    return (O, L) if return_logsumexp else O


def check_kernels(q: Tensor, mask: Tensor | None, dropout_p: float, scale: float) -> None:
    """One sentence for what the kernels cannot do."""
    if triton is None:
        raise ValueError(
            "Triton is not installed, which these kernels need; on Linux, `pip install triton` brings it."
        )
    if q.shape[-1] not in SIZES:
        raise ValueError(f"the kernels take heads of size {' or '.join(map(str, SIZES))}, not {q.shape[-1]}.")
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"the kernels take float32, float16 or bfloat16, not {q.dtype}.")
    if mask is not None or dropout_p:
        what = "a mask" if mask is not None else "dropout"
        raise ValueError(
            f"the kernels do not take {what}; flash_attention of course_lib.attention.flash does."
        )
    if not scale > 0:
        raise ValueError(f"scale is {scale}; the kernels take a number above 0.")
    if not (q.is_cuda or (INTERPRETED and q.device.type == "cpu")):
        raise ValueError(
            f"the kernels cannot run on {q.device}: they need an NVIDIA GPU, or the CPU and Triton's interpreter, for "
            f"which TRITON_INTERPRET=1 must be set before anything imports Triton (`import course_lib` sets it)."
        )


def by_token(x: Tensor) -> Tensor:
    """``(batch, heads, length, size)`` whose memory is ``(batch, length, heads, size)``; copied if it is not."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def arguments(q: Tensor, k: Tensor, causal: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    """What all kernels take: heads, group, rows, keys, size_class; and the constants they are compiled for."""
    (_, heads, rows, size), (_, kv_heads, keys, _) = q.shape, k.shape
    numbers = (
        heads,
        heads // kv_heads,
        rows,
        keys,
        max(rows, keys).bit_length(),
    )  # one tuning for 1k to 2k, and so on
    return numbers, {"CAUSAL": causal, "SIZE": size, "WIDE": INTERPRETED}


def per_block(block: str, length: int, heads: int) -> Callable[[dict[str, int]], tuple[int, int]]:
    """The grid: a program for every block of the length and every head."""
    return lambda meta: (triton.cdiv(length, meta[block]), heads)


def on_device(x: Tensor) -> AbstractContextManager:
    """Triton starts kernels on the current GPU."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
