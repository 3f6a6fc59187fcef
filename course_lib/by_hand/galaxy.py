"""Galaxy by hand: tensor parallelism between heads and columns, and
sequence parallelism between them, on devices that are not alike.

Ye et al., arXiv:2405.17245, for inference on devices at the edge; here
it trains. Device i of p with the power c_i gets of the heads, of the
columns of the MLP and of the tokens the share

    c_i / (c_1 + ... + c_p)

so all end at the same time. Between attention and MLP each rank has its
own tokens, X_i. A region begins with the product [X_1 ... X_p] A_i and
ends with own tokens of the sum Y_1 B_1 + ... + Y_p B_p.

Parts that differ in size go around a ring. First rung: equal shares.
Second: unequal shares; a rank gathers, and then multiplies. On the
third it multiplies the tokens of one rank, a tile, while the ring
brings the next ones; and at the end of a region, while the sum of one
tile travels, it computes its addend of the next one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.runtime import trace


def deal(n: int, power: list[float]) -> list[int]:
    """n heads, columns or tokens in proportion to the ranks' power."""
    shares = range(len(power) + 1)
    ends = [round(n * sum(power[:i]) / sum(power)) for i in shares]
    return [b - a for a, b in pairwise(ends)]


class Ring:
    """Tokens in unequal parts: (batch, seq_i, n) on rank i, a tile of
    (batch, seq, n). Each rank sends to its right."""

    def __init__(self, power=(1,), overlap: bool = True) -> None:
        self.p, self.rank = dist.get_world_size(), dist.get_rank()
        self.power = [power[i % len(power)] for i in range(self.p)]
        self.overlap = overlap

    def own(self, x: Tensor) -> Tensor:
        """(batch, seq, ...) -> (batch, seq_i, ...)"""
        self.lengths = deal(x.shape[1], self.power)
        if not all(self.lengths):
            raise ValueError(f"{x.shape[1]} tokens are too few to deal")
        return x.split(self.lengths, 1)[self.rank]

    @contextmanager
    def passing(self, x: Tensor, i: int) -> Iterator[Tensor]:
        """Meanwhile x goes to the right, and tile i comes."""
        # Gloo takes no tensor of a GPU, where ranks share one.
        wire = "cpu" if dist.get_backend() == "gloo" else x.device
        x = x.contiguous().to(wire)
        tile = x.new_empty(len(x), self.lengths[i], x.shape[2])
        send = dist.P2POp(dist.isend, x, (self.rank + 1) % self.p)
        receive = dist.P2POp(dist.irecv, tile, (self.rank - 1) % self.p)
        with trace.span("communication", "tile passed on"):
            works = dist.batch_isend_irecv([send, receive])
            yield tile
            with trace.waiting():
                for work in works:
                    work.wait()

    def tiles(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Of all ranks, own first. While one is worked on, the next
        one is on its way."""
        for step in range(self.p - 1):
            i = (self.rank - step) % self.p
            with self.passing(x, i - 1) as tile:
                yield i, x
            x = tile.to(x.device)
        yield (self.rank + 1) % self.p, x

    def when_needed(self, each: Iterator) -> Iterator:
        """The trick of the third rung is what is missing here: a list,
        which has all before the first one is used."""
        return each if self.overlap else iter(list(each))

    def gather(self, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """X = [X_1 ... X_p], all tokens, and X a."""
        done = {}
        for i, tile in self.when_needed(self.tiles(x)):
            done[i] = tile, times(i, tile, a)
        xs, ys = zip(*(done[i] for i in range(self.p)), strict=True)
        return torch.cat(xs, 1), torch.cat(ys, 1)

    def scatter(self, y: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Y, which has all tokens already, and this rank's tokens of
        Y_1 a_1 + ... + Y_p a_p. Backward of the one is the other."""
        tiles = y.split(self.lengths, 1)
        order = [(self.rank - k) % self.p for k in range(1, self.p + 1)]
        addends = self.when_needed(times(i, tiles[i], a) for i in order)
        total = next(addends)
        for i in order[1:]:
            with self.passing(total, i) as tile:
                addend = next(addends)
            total = tile.to(addend.device) + addend
        return y, total


def times(i: int, tile: Tensor, a: Tensor) -> Tensor:
    with trace.span("compute", f"tile {i}"):
        return tile @ a


class Multiply(torch.autograd.Function):
    """There and back are a ring's gather and scatter. PyTorch stores a
    matrix transposed: w is (out, in)."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, there, back) -> Tensor:
        x, y = there(x, w.T)
        ctx.back = back
        ctx.save_for_backward(x, w)
        return y

    @staticmethod
    def backward(ctx, dy: Tensor):
        x, w = ctx.saved_tensors
        dy, dx = ctx.back(dy, w)
        return dx, dy.flatten(0, 1).T @ x.flatten(0, 1), None, None


def cut(w: Tensor, dim: int, sizes: list[int]) -> nn.Parameter:
    part = w.detach().split(sizes, dim)[dist.get_rank()]
    own = nn.Parameter(part.clone())  # so that the whole can be freed
    own.cut = dim
    return own


def make_region(module, first: list, last, sizes, ring: Ring) -> None:
    """``first`` read its input: they multiply it all at once, so that
    it is gathered once. ``last`` makes its result."""
    for layer in first:
        layer.weight = cut(layer.weight, 0, sizes)  # (out_i, in)
        layer.bias = cut(layer.bias, 0, sizes)
    last.weight = cut(last.weight, 1, sizes)  # (out, in_i)
    enter, leave = ring.gather, ring.scatter
    inside = module.forward

    def forward(x: Tensor, *others) -> Tensor:
        a = torch.cat([layer.weight for layer in first])
        y = Multiply.apply(x, a, enter, leave)
        parts = list(y.chunk(len(first), -1))
        for layer in first:  # each is called once, in this order
            layer.forward = lambda _, b=layer.bias: parts.pop(0) + b
        return inside(x, *others)

    def forward_last(y: Tensor) -> Tensor:
        return Multiply.apply(y, last.weight, leave, enter) + last.bias

    module.forward, last.forward = forward, forward_last


def galaxy(model: nn.Module, ring: Ring) -> None:
    """Cuts ``model`` in place. It takes all tokens, and gives the
    logits of this rank's."""

    def embed_own(module: nn.Module, inputs: tuple[Tensor]):
        at = torch.arange(inputs[0].shape[1], device=inputs[0].device)
        return ring.own(inputs[0]), ring.own(at[None])

    model.embedding.register_forward_pre_hook(embed_own)
    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        heads = deal(model.config.num_heads, ring.power)
        sizes = [n * attention.head_size for n in heads]
        first = [attention.query, attention.key, attention.value]
        make_region(attention, first, attention.output, sizes, ring)
        sizes = deal(mlp.up.out_features, ring.power)
        make_region(mlp, [mlp.up], mlp.down, sizes, ring)


def sum_gradients(model: nn.Module) -> Tensor:
    """What every rank has in full saw its tokens only: embeddings,
    norms, biases of rows. Returns the norm of the whole gradient."""
    squares = {True: 0.0, False: 0.0}
    with trace.span("communication", "all-reduce"):
        for w in model.parameters():
            if not hasattr(w, "cut"):
                dist.all_reduce(w.grad)
            squares[hasattr(w, "cut")] += w.grad.square().sum()
        dist.all_reduce(squares[True])
    return (squares[True] + squares[False]).sqrt()


def whole(model: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` as one device would have it, to save it."""
    state = model.state_dict(keep_vars=True)
    for name, w in state.items():
        if hasattr(w, "cut"):
            parts = [None] * dist.get_world_size()
            dist.all_gather_object(parts, w.detach().cpu())
            state[name] = torch.cat(parts, w.cut)
    return state


def train(model, batches, make_optimizer, loss_fn, **settings):
    """``power=(2, 1)``: every second device is half as fast. Yields each
    step's loss, whose mean over ranks is that of all tokens, and the
    norm of the whole gradient."""
    ring = Ring(**settings)
    galaxy(model, ring)
    model.whole = lambda: whole(model)
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in batches:
        own = ring.own(targets)
        share = own.numel() / targets.numel()
        loss = loss_fn(model(inputs), own) * share
        loss.backward()
        norm = sum_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach() * ring.p, norm


RUNGS = {
    "equal shares": {"overlap": False},
    "unequal shares": {"power": (2, 1), "overlap": False},
    "overlap": {"power": (2, 1)},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand import main
    from course_lib.observe.by_hand.traffic import galaxy as sent

    same = {"same_samples": True, "sequence_parallel": True}
    main(train, RUNGS, tp=None, traffic=sent, **same)
