"""Block formats by hand: numbers of 8, 6 or 4 bits, of which a few
share a scale (MX: Rouhani et al., arXiv:2310.10537; NVFP4: NVIDIA,
arXiv:2509.25149).

With e exponent bits and m mantissa bits a number is k 2^(E - m): k is
whole, and E the exponent of |x|, but at least 2 - 2^(e-1). Below that
numbers lie evenly, down to zero. e2m1, in 4 bits with the sign, knows
0, 0.5, 1, 1.5, 2, 3, 4 and 6.

    MX      32 numbers have a scale, a power of two, in 8 bits
    NVFP4   16 numbers have a scale in e4m3, and a tensor one in fp32

So a number of e2m1 takes 4 + 8/32 = 4.25 bits in MX, and 4 + 8/16 = 4.5
in NVFP4.

Fourth rung: weights that are kept in bf16 alone. 1 + 0.001 is 1 there,
rounded to the nearest, however often it is added. Rounded up or down by
chance it is 1.001 in the mean.

A value is held here in 32 bits, and is one that the format has.
"""

from functools import partial

import torch
from torch import Tensor, nn

# Exponent bits, mantissa bits, and the largest number.
FORMATS = {
    "e4m3": (4, 3, 448.0),
    "e5m2": (5, 2, 57344.0),
    "e3m2": (3, 2, 28.0),
    "e2m3": (2, 3, 7.5),
    "e2m1": (2, 1, 6.0),
}


def cast(x: Tensor, element: str, chance: bool = False) -> Tensor:
    """The nearest number of the format, of two the even one. What is
    too large becomes the largest. By ``chance``: one of the two beside
    x, the nearer one more often, so that the mean is x."""
    e, m, largest = FORMATS[element]
    step = two_to(exponent(x).clamp(min=2 - 2 ** (e - 1)) - m)
    k = x / step
    k = (k + torch.rand_like(k)).floor() if chance else k.round()
    return (k * step).clamp(-largest, largest)


def exponent(x: Tensor) -> Tensor:
    """E, where 2^E <= |x| < 2^(E+1)."""
    return torch.frexp(x).exponent - 1


def two_to(E: Tensor) -> Tensor:
    return torch.ldexp(torch.ones(E.shape, device=E.device), E)


def blocks(x: Tensor, size: int) -> Tensor:
    """(rows, n) -> (rows, n/size, size), padded with zeros."""
    x = nn.functional.pad(x, (0, -x.shape[1] % size))
    return x.unflatten(1, (-1, size))


def mx(x: Tensor, element="e4m3", chance: bool = False) -> Tensor:
    """(rows, n) as MX holds it, in blocks along n."""
    parts = blocks(x, 32)
    E = exponent(parts.abs().amax(2, keepdim=True))
    top = exponent(torch.tensor(FORMATS[element][2]))
    # The largest number of a block comes to lie below 2^(top + 1). That
    # may be above the format's largest: 7 is cut to 6 in e2m1.
    s = two_to((E - top).clamp(-127, 127))
    wide = cast(parts / s, element, chance) * s
    return wide.flatten(1)[:, : x.shape[1]]


def nvfp4(x: Tensor, chance: bool = False) -> Tensor:
    """(rows, n) as NVFP4 holds it, in blocks along n."""
    parts = blocks(x, 16)
    t = x.abs().max().clamp(min=1e-30) / (448 * 6)  # of the tensor
    s = parts.abs().amax(2, keepdim=True) / 6 / t
    s = cast(s.clamp(min=2**-6), "e4m3")  # at least a normal number
    wide = cast(parts * (1 / t / s), "e2m1", chance) * (s * t)
    return wide.flatten(1)[:, : x.shape[1]]


def bf16(x: Tensor, chance: bool = True) -> Tensor:
    """bf16 is the upper half of fp32. The trick: a random lower half is
    added, and carries over as often as what is cut off is large."""
    if not chance:
        return x.bfloat16().float()
    some = torch.randint_like(x, 2**16, dtype=torch.int32)
    return ((x.view(torch.int32) + some) & -(2**16)).view(torch.float32)


class Product(torch.autograd.Function):
    """X W^T: (tokens, in), (out, in) -> (tokens, out). Blocks lie along
    what a product adds up, so each tensor is cast in two directions."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, held, held_g) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.held, ctx.held_g = held, held_g
        return held(x) @ held(w).T

    @staticmethod
    def backward(ctx, g: Tensor):
        x, w = ctx.saved_tensors
        dx = ctx.held_g(g) @ ctx.held(w.T).T  # along out
        dw = ctx.held_g(g.T) @ ctx.held(x.T).T  # along tokens
        return dx, dw, None, None


class Linear(nn.Module):
    """In place of ``nn.Linear``: (..., in) -> (..., out). ``held_g`` is
    for gradients: rounded to the nearest, small ones would be lost."""

    def __init__(self, old: nn.Linear, held, held_g) -> None:
        super().__init__()
        self.weight, self.bias = old.weight, old.bias
        self.how = held, held_g

    def forward(self, x: Tensor) -> Tensor:
        y = Product.apply(x.flatten(0, -2), self.weight, *self.how)
        y = y if self.bias is None else y + self.bias
        return y.view(*x.shape[:-1], -1)


def train(
    model,
    batches,
    make_optimizer,
    loss_fn,
    held=lambda x: x,
    held_g=None,
    weights=None,
):
    """``held`` rounds what the linear layers of the blocks multiply,
    ``held_g`` gradients there, and ``weights`` each updated parameter.
    Yields each step's loss and gradient norm."""
    for module in list(model.blocks.modules()):
        for name, old in list(module.named_children()):
            if isinstance(old, nn.Linear):
                setattr(module, name, Linear(old, held, held_g or held))
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        norm = nn.utils.get_total_norm(
            [w.grad for w in model.parameters()]
        )
        optimizer.step()
        optimizer.zero_grad()
        if weights is not None:
            for w in model.parameters():
                w.data.copy_(weights(w.data))
        yield loss.detach(), norm


RUNGS = {
    "mxfp8": {"held": mx},
    "mxfp4": {"held": partial(mx, element="e2m1")},
    "nvfp4": {"held": nvfp4, "held_g": partial(nvfp4, chance=True)},
    "bf16 weights, rounded by chance": {"weights": bf16},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand import main

    main(train, RUNGS, most=1)
