"""Linear layers that multiply numbers of 8 bits (Micikevicius et al., arXiv:2209.05433), put into a model from outside.

Y = X W^T, dX = G W and dW = G^T X, where G is the gradient of Y: X and W are cast to e4m3, G to e5m2, or to e4m3 where
each tile has a scale of its own. What is kept for backward stays as it is, and so do the weights that the optimizer
updates.

What shares a scale is called as in a ``Plan``:

    tensor    all numbers of a tensor, by the largest of them
    delayed   the same, by the largest of the last 16 steps
    block     1 x 128 of X and G, 128 x 128 of W (DeepSeek-V3, arXiv:2412.19437)
    mx        32 in a row, by a power of two (OCP Microscaling, arXiv:2310.10537)

The first two are multiplied by ``torch._scaled_mm`` on a GPU with 8-bit arithmetic, if all sizes are multiples of 16.
Elsewhere the numbers of 8 bits are multiplied in fp32: that shows what a model learns, and not how fast.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.models.anatomy import LAYERS
from course_lib.models.experts import Experts
from course_lib.models.names import matching
from simulator.inputs.checks import one_of

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TILES = {"block": ((1, 128), (128, 128)), "mx": ((1, 32), (1, 32))}  # of X and G, and of W
SCALING = ("tensor", "delayed", *TILES)
REMEMBERED = 16  # steps
X, W, G = range(3)


class Operand(NamedTuple):
    """A matrix (rows, k) of a product that adds up over k, and how it is cast.

    Attributes:
        scale: one for all numbers; None: one for each tile.
    """

    matrix: Tensor
    dtype: torch.dtype
    scale: Tensor | None
    tile: tuple[int, int]
    power_of_two: bool

    def cast(self) -> Tensor:
        """In 8 bits, by the one scale. What is too large for it becomes the largest number."""
        most = torch.finfo(self.dtype).max
        return (self.matrix / self.scale).clamp(-most, most).to(self.dtype).contiguous()

    def rounded(self) -> Tensor:
        """The matrix as 8 bits hold it, in fp32 or more."""
        wide = self.matrix.to(torch.promote_types(self.matrix.dtype, torch.float32))
        if self.scale is not None:
            return self.cast().to(wide.dtype) * self.scale
        (n, m), (a, b), most = wide.shape, self.tile, torch.finfo(self.dtype).max
        tiles = F.pad(wide, (0, -m % b, 0, -n % a)).unflatten(1, (-1, b)).unflatten(0, (-1, a))
        amax = tiles.abs().amax((1, 3), keepdim=True)
        scale = (amax / most).clamp(min=torch.finfo(torch.float32).tiny)
        if self.power_of_two:  # that of the largest number over that of the format's largest
            exponent = torch.frexp(amax).exponent - math.frexp(most)[1]
            scale = torch.ldexp(torch.ones_like(amax), exponent.clamp(-127, 127))
        tiles = (tiles / scale).clamp(-most, most).to(self.dtype).to(wide.dtype) * scale
        return tiles.flatten(2).flatten(0, 1)[:n, :m]


def product(a: Operand, b: Operand, dtype: torch.dtype) -> Tensor:
    """a b^T."""
    if a.scale is not None and has_kernel(a.matrix, b.matrix):
        return torch._scaled_mm(a.cast(), b.cast().t(), a.scale, b.scale, out_dtype=dtype)
    return (a.rounded() @ b.rounded().T).to(dtype)


def has_kernel(a: Tensor, b: Tensor) -> bool:
    sizes = all(n % 16 == 0 for n in (*a.shape, *b.shape))
    return sizes and a.is_cuda and torch.cuda.get_device_capability(a.device) >= (8, 9)


class Fp8Linear:
    """Called like ``F.linear``; each layer has one of its own, because it remembers the largest numbers.

    Each rank scales what it has, so ranks send nothing. A forward that is repeated in backward changes nothing: a
    largest number stays the largest, and only ``next_step`` begins a new one. A checkpoint does not hold the memory;
    without one, a step takes its scales from the tensors themselves.
    """

    def __init__(self, scaling: str = "tensor") -> None:
        one_of("scaling", scaling, SCALING)
        self.scaling, self.backward = scaling, E4M3 if scaling in TILES else E5M2
        self.history: list[dict[int, Tensor]] = []  # of the last steps, for X, W and G
        self.now: dict[int, Tensor] = {}
        self.recording = True

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """(…, in), (out, in), (out,) -> (…, out), in the dtype of autocast, or of x."""
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        if not (x.numel() and weight.numel()):  # an expert without tokens, a rank without heads
            return F.linear(x, weight, bias)
        self.recording = torch.is_grad_enabled()  # what is evaluated is not remembered
        y = Products.apply(x.to(dtype).flatten(0, -2), weight, self)
        y = y if bias is None else y + bias.to(dtype)
        return y.view(*x.shape[:-1], -1)

    def scale(self, role: int, t: Tensor) -> Tensor | None:
        if self.scaling in TILES:
            return None
        amax = t.abs().amax().float()
        if self.scaling == "delayed":
            before = [step[role] for step in self.history if role in step]
            if self.recording:
                self.now[role] = torch.maximum(self.now.get(role, amax), amax)
            amax = torch.stack(before).amax() if before else amax
        return (amax / torch.finfo(self.dtype(role)).max).clamp(min=torch.finfo(torch.float32).tiny)

    def dtype(self, role: int) -> torch.dtype:
        return self.backward if role == G else E4M3

    def operand(self, role: int, matrix: Tensor, scale: Tensor | None) -> Operand:
        tile = TILES.get(self.scaling, ((1, 1), (1, 1)))[role == W]
        return Operand(matrix, self.dtype(role), scale, tile, self.scaling == "mx")

    def next_step(self) -> None:
        """After the update of the weights."""
        if self.now:
            self.history = [self.now, *self.history][:REMEMBERED]
            self.now = {}


class Products(torch.autograd.Function):
    """X W^T: (tokens, in), (out, in) -> (tokens, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, how: Fp8Linear) -> Tensor:
        ctx.how, ctx.scales = how, (how.scale(X, x), how.scale(W, w))
        ctx.save_for_backward(x, w)
        return product(how.operand(X, x, ctx.scales[X]), how.operand(W, w, ctx.scales[W]), x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (x, w), how, dx, dw = ctx.saved_tensors, ctx.how, None, None
        of_x, of_w, of_g = *ctx.scales, how.scale(G, g)
        if ctx.needs_input_grad[0]:
            dx = product(how.operand(G, g, of_g), how.operand(W, w.t(), of_w), x.dtype)
        if ctx.needs_input_grad[1]:
            dw = product(how.operand(G, g.t(), of_g), how.operand(X, x.t(), of_x), w.dtype)
        return dx, dw, None


def apply_fp8(model: nn.Module, scaling: str = "tensor") -> list[Fp8Linear]:
    """The linear layers of every block multiply in 8 bits, and so do experts; not embeddings and heads, nor routers
    (``gate``), which lose more by it. Names and parameters stay. Call ``next_step`` of what is returned after each
    update.

    Raises:
        ValueError: there is no such scaling, or the model has no block with linear layers.
    """
    modules = dict(model.named_modules())
    blocks = [f"{name}." for pattern in LAYERS for name in matching(pattern, modules)]
    found = []
    for name, module in modules.items():
        inside = name.startswith(tuple(blocks)) and name.rpartition(".")[2] != "gate"
        if type(module) is nn.Linear and inside:
            found.append(Fp8Linear(scaling))
            module.forward = partial(_forward, module, found[-1])
        if inside and (multiply := getattr(module, "multiply", None)):  # a rank's part of a linear layer
            if multiply is not F.linear:
                raise ValueError(
                    f"{name} cannot be in fp8: it multiplies what it gathers piece by piece, in 16 bits"
                )
            found.append(Fp8Linear(scaling))
            module.multiply = found[-1]
        if isinstance(module, Experts):
            module.linears = [(Fp8Linear(scaling), Fp8Linear(scaling)) for _ in module.down_proj]
            found += chain.from_iterable(module.linears)
    if not found:
        raise ValueError(
            f"fp8 needs blocks with linear layers, and {type(model).__name__} has none of {', '.join(LAYERS)}"
        )
    return found


def _forward(module: nn.Linear, linear: Fp8Linear, x: Tensor) -> Tensor:
    return linear(x, module.weight, module.bias)
