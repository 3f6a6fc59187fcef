"""fp8 by hand: a linear layer multiplies numbers of 8 bits
(Micikevicius et al., arXiv:2209.05433).

e4m3 has 4 bits of exponent and 3 of mantissa, and ends at 448. e5m2 has
fewer digits, and ends at 57,344. A tensor is divided by a scale before
it is cast, so that its largest number just fits:

    s = max |x| / 448,   q = cast(x / s),   x ~ s q

Y = X W^T, dX = G W and dW = G^T X multiply such tensors; G is the
gradient of Y. All else stays as it is, the optimizer's weights, too.

Which s? First rung: that of the tensor itself. It is read once for its
scale and once to be cast, and ranks that shall cast alike must agree on
each scale: many small messages. Second: what was largest in the last 16
steps, in one message a step. Third: a scale for each 1 x 128 numbers of
X and G and each 128 x 128 of W, so an outlier spoils its own tile alone
(DeepSeek-V3, arXiv:2412.19437). No message: a tile lies on one rank.
Fourth: the second, and of each W a rank keeps 1/p of the rows in 32
bits. They are gathered in 8.

What a kernel for fp8 adds up is here a product of s q in 32 bits.
"""

from collections import deque
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.runtime import trace

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class Scaled(NamedTuple):
    """A matrix (n, m) as tiles of (a, b), each with its scale."""

    q: Tensor  # (n/a, a, m/b, b) in 8 bits
    s: Tensor  # (n/a, 1, m/b, 1)

    def wide(self, n: int, m: int) -> Tensor:
        """s q: (n, m), without what filled the last tiles."""
        tiles = self.q.to(self.s.dtype) * self.s
        return tiles.flatten(2).flatten(0, 1)[:n, :m]


class Current:
    """Each tile's scale is that of its own largest number."""

    def __init__(self, dtype, tile=(None, None), shared=False):
        self.dtype, self.tile, self.shared = dtype, tile, shared
        self.history, self.now = deque(maxlen=16), []  # of Delayed

    def __call__(self, x: Tensor, turned=False) -> Scaled:
        tile = self.tile[::-1] if turned else self.tile
        a, b = (t or n for t, n in zip(tile, x.shape, strict=True))
        x = nn.functional.pad(x, (0, -x.shape[1] % b, 0, -len(x) % a))
        x = x.unflatten(1, (-1, b)).unflatten(0, (-1, a))
        most = torch.finfo(self.dtype).max
        s = self.largest(x.abs().amax((1, 3), keepdim=True)) / most
        s = s.clamp(min=torch.finfo(s.dtype).tiny)  # no 0 / 0
        # The trick is the clamp. With an old scale a number may be too
        # large: infinity in e5m2, and in e4m3, which has none, a nan.
        return Scaled((x / s).clamp(-most, most).to(self.dtype), s)

    def largest(self, amax: Tensor) -> Tensor:
        return of_all_ranks(amax) if self.shared else amax


class Delayed(Current):
    """A scale from steps before this one: x is read only once. An
    outlier that is larger than all before is cut off."""

    def largest(self, amax: Tensor) -> Tensor:
        self.now.append(amax.max())
        if not self.history:  # the first step has none before it
            return super().largest(amax)
        return torch.stack([*self.history]).amax().view_as(amax)


def of_all_ranks(amax: Tensor) -> Tensor:
    with trace.waiting(), trace.span("communication", "amax"):
        dist.all_reduce(amax, op=dist.ReduceOp.MAX)
    return amax


def remember(layers: list, p: int) -> None:
    """After backward: the largest of all ranks and microbatches."""
    scales = [s for x in layers for s in (x.x, x.w, x.g)]
    amax = torch.stack([torch.stack(s.now).amax() for s in scales])
    every = of_all_ranks(amax) if p > 1 else amax
    for s, largest in zip(scales, every, strict=True):
        s.history.append(largest)
        s.now.clear()


class Product(torch.autograd.Function):
    """X W^T: (tokens, in), (out, in) -> (tokens, out)."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, layer) -> Tensor:
        ctx.layer, ctx.sizes = layer, (len(x), layer.out, x.shape[1])
        x8, w8 = layer.x(x), layer.weight_in_8_bits()
        ctx.save_for_backward(*x8, *w8)  # a quarter of the bytes
        return x8.wide(*x.shape) @ w8.wide(layer.out, x.shape[1]).T

    @staticmethod
    def backward(ctx, g: Tensor):
        layer, (tokens, out, into) = ctx.layer, ctx.sizes
        x8, w8 = (Scaled(*ctx.saved_tensors[i : i + 2]) for i in (0, 2))
        x, w = x8.wide(tokens, into), w8.wide(out, into)
        g8 = layer.g(g).wide(tokens, out)
        dx = g8 @ w
        if layer.block:  # dW adds up over tokens: tiles lie along them
            x = layer.x(x, turned=True).wide(tokens, into)
            g8 = layer.g(g, turned=True).wide(tokens, out)
        return dx, layer.reduce(g8.T @ x), None


class Linear(nn.Module):
    """In place of ``nn.Linear``: (..., in) -> (..., out)."""

    def __init__(self, old, p, kind=Current, block=None, backward=E5M2):
        super().__init__()
        self.weight, self.bias, self.p = old.weight, old.bias, p
        self.out, self.block = len(self.weight), block
        line, shared = (block and 1, block), p > 1 and not block
        self.x = kind(E4M3, line, shared)
        self.w = kind(E4M3, (block, block))
        self.g = kind(backward, line, shared)

    def weight_in_8_bits(self) -> Scaled:
        return self.w(self.weight)

    def reduce(self, gradient: Tensor) -> Tensor:
        return gradient

    def forward(self, x: Tensor) -> Tensor:
        y = Product.apply(x.flatten(0, -2), self.weight, self)
        y = y if self.bias is None else y + self.bias
        return y.view(*x.shape[:-1], -1)


class Gathered(Linear):
    """``weight`` is 1/p of the rows, padded: (rows, in)."""

    def __init__(self, old, p, **how):
        super().__init__(old, p, **how)
        self.w.shared = True
        rows = self.padded(self.weight.detach()).chunk(p)
        self.weight = nn.Parameter(rows[dist.get_rank()].clone())

    def padded(self, w: Tensor) -> Tensor:
        return nn.functional.pad(w, (0, 0, 0, -self.out % self.p))

    def gather(self, rows: Tensor) -> Tensor:
        whole = rows.new_empty(self.p * len(rows), rows.shape[1])
        with trace.waiting(), trace.span("communication", "all-gather"):
            # As plain bytes: not every backend knows of fp8.
            parts = whole.view(torch.uint8).chunk(self.p)
            dist.all_gather(list(parts), rows.view(torch.uint8))
        return whole

    def weight_in_8_bits(self) -> Scaled:
        q, s = self.w(self.weight)  # (1, rows, 1, in), a number
        return Scaled(self.gather(q.flatten(2)[0])[None, :, None], s)

    def reduce(self, gradient: Tensor) -> Tensor:
        """(out, in) on each rank -> (rows, in) of the mean."""
        mean = torch.empty_like(self.weight)
        parts = (self.padded(gradient) / self.p).chunk(self.p)
        with trace.span("communication", "reduce-scatter"):
            dist.reduce_scatter(mean, list(parts))
        return mean


def average(model: nn.Module, shards: set, p: int) -> Tensor:
    """Gradients over the ranks; returns the norm of all of them."""
    squares = {True: 0.0, False: 0.0}
    for w in model.parameters():
        if p > 1 and w not in shards:
            with trace.span("communication", "all-reduce"):
                dist.all_reduce(w.grad)
            w.grad /= p
        squares[w in shards] += w.grad.square().sum()
    if shards:
        dist.all_reduce(squares[True])
    return (squares[True] + squares[False]).sqrt()


def train(
    model, batches, make_optimizer, loss_fn, layer=Linear, p=None, **how
):
    """The linear layers of all blocks in 8 bits; not embeddings and the
    head, which lose more by it. Yields each step's loss, of this rank's
    samples, and the norm of the averaged gradient. With a ``block``
    ranks compute as one device if it divides the tokens of each."""
    p = p or dist.get_world_size()
    if p > 1:
        for t in (*model.parameters(), *model.buffers()):
            dist.broadcast(t.detach(), 0)  # all ranks start alike
    layer, layers = layer if p > 1 else Linear, []
    for module in list(model.blocks.modules()):
        for name, old in list(module.named_children()):
            if isinstance(old, nn.Linear):
                layers.append(layer(old, p, **how))
                setattr(module, name, layers[-1])
    shards = {x.weight for x in layers if layer is Gathered}
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        norm = average(model, shards, p)
        if how.get("kind") is Delayed:
            remember(layers, p)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), norm
    for x in layers if shards else ():
        x.weight = nn.Parameter(x.gather(x.weight.detach())[: x.out])


RUNGS = {
    "current": {},
    "delayed": {"kind": Delayed},
    "blocks": {"block": 128, "backward": E4M3},
    "weights gathered in 8 bits": {"kind": Delayed, "layer": Gathered},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand import main
    from course_lib.observe.by_hand.traffic import fp8

    main(train, RUNGS, traffic=fp8, alone={"p": 1})
