"""Tensor parallelism by hand: each rank multiplies with its part of a
matrix, and all ranks see the same samples.

Shoeybi et al., arXiv:1909.08053. An MLP is Z = GeLU(X A) B. Cut A by
columns and B by rows into p parts; rank i holds A_i and B_i:

    Y_i = GeLU(X A_i)    Z = Y_1 B_1 + ... + Y_p B_p

GeLU works on each column by itself, so nothing is sent until the sum.
Attention is cut alike: its heads work by themselves.

First rung: every matrix is cut by columns, and its result is gathered.
Second: columns, then rows. A layer has two all-reduces in forward and
two in backward, each of batch * seq * hidden numbers. Third rung: the
vocabulary is cut, too, and no rank ever has all logits.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from course_lib.runtime import trace

# torch 2.13 has renamed it, and warns of its old name.
all_gather = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)


def all_reduce(x: Tensor, op=dist.ReduceOp.SUM) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    with trace.waiting(), trace.span("communication", "all-reduce"):
        dist.all_reduce(x, op)
    return x


class EnterRegion(torch.autograd.Function):
    """f: a tensor that all ranks have enters work of which each does a
    part, so each has an addend of its gradient."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return all_reduce(gradient)


class LeaveRegion(torch.autograd.Function):
    """g, the other way round: the ranks' addends leave as their sum,
    and all ranks have its gradient."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return all_reduce(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient


class GatherColumns(torch.autograd.Function):
    """(batch, seq, out/p) on each rank -> (batch, seq, out) on all."""

    @staticmethod
    def forward(ctx, y: Tensor) -> Tensor:
        p = dist.get_world_size()
        whole = y.new_empty(p * len(y), *y.shape[1:])
        with (
            trace.waiting(),
            trace.span("communication", "all-gather"),
        ):
            all_gather(whole, y.contiguous())
        return torch.cat(whole.chunk(p), -1)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return part(gradient, -1)


f, g = EnterRegion.apply, LeaveRegion.apply
gather = GatherColumns.apply


def part(x: Tensor, dim: int, unit: int = 1) -> Tensor:
    """This rank's part of ``x``, a view: units of so many rows (such as
    heads) stay whole, and the first ranks may have one more."""
    units = x.unflatten(dim, (-1, unit))
    dim %= x.dim()
    parts = units.tensor_split(dist.get_world_size(), dim)
    return parts[dist.get_rank()].flatten(dim, dim + 1)


def cut(w: Tensor, dim: int, unit: int = 1) -> nn.Parameter:
    """A parameter of its own memory, so that the whole can be freed."""
    own = nn.Parameter(part(w.detach(), dim, unit).clone())
    own.cut = dim
    return own


def cut_columns(layer: nn.Linear, unit: int = 1) -> None:
    """Y_i = X A_i + b_i: (batch, seq, in) -> (batch, seq, out/p). The
    layer multiplies with what it has; PyTorch stores A transposed."""
    layer.weight = cut(layer.weight, 0, unit)  # (out/p, in)
    layer.bias = cut(layer.bias, 0, unit)


def enter(module: nn.Module) -> None:
    """Its input passes f, once for all layers that read it."""
    module.register_forward_pre_hook(
        lambda _, inputs: (f(inputs[0]), *inputs[1:])
    )


class Row(nn.Module):
    """Z = g(Y_i B_i) + b: (batch, seq, in/p) -> (batch, seq, out). The
    bias is whole on every rank, and added once, to the sum."""

    def __init__(self, whole: nn.Linear, unit: int = 1) -> None:
        super().__init__()
        self.weight = cut(whole.weight, 1, unit)  # (out, in/p)
        self.bias = whole.bias

    def forward(self, y: Tensor) -> Tensor:
        return g(linear(y, self.weight)) + self.bias


class VocabularyEmbedding(nn.Module):
    """The rows of this rank's words; zeros for all other words, so that
    the sum is each word's row."""

    def __init__(self, whole: nn.Embedding) -> None:
        super().__init__()
        self.weight = cut(whole.weight, 0)  # (vocab/p, hidden)
        self.words = whole.num_embeddings

    def forward(self, tokens: Tensor) -> Tensor:
        row, here = rows(tokens, self.words)
        x = embedding(row, self.weight)
        return g(x.masked_fill(~here[..., None], 0))


def rows(tokens: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """Of each token the row in this rank's part, and whether it is in
    there; where it is not, row 0."""
    own = part(torch.arange(words, device=tokens.device), 0)
    here = (tokens >= own[0]) & (tokens <= own[-1])
    return (tokens - own[0]).where(here, 0), here


def cross_entropy(logits: Tensor, targets: Tensor, words: int):
    """The mean of log(sum_v exp x_v) - x_target, of logits x with this
    rank's part of the words, (batch, seq, vocab/p): two messages of one
    and two numbers a token, in place of one of V."""
    # exp of a large logit would overflow; the loss does not change.
    largest = all_reduce(logits.detach().amax(-1), dist.ReduceOp.MAX)
    x = logits - largest[..., None]
    column, here = rows(targets, words)
    of_target = x.gather(-1, column[..., None])[..., 0].where(here, 0)
    total, of_target = g(torch.stack([x.exp().sum(-1), of_target]))
    return (total.log() - of_target).mean()


def every_layer(model: nn.Module) -> None:
    """First rung: each linear layer by itself, its result gathered."""
    for layer in model.blocks.modules():
        if isinstance(layer, nn.Linear):
            enter(layer)
            cut_columns(layer)
            layer.register_forward_hook(lambda _, x, y: gather(y))


def every_region(model: nn.Module) -> None:
    """Second rung: columns, then rows; whole heads on each rank."""
    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        size = attention.head_size
        for layer in (attention.query, attention.key, attention.value):
            cut_columns(layer, size)
        attention.output = Row(attention.output, size)
        cut_columns(mlp.up)
        mlp.down = Row(mlp.down)
        enter(attention)
        enter(mlp)


def vocabulary(model: nn.Module) -> None:
    """Third rung. One matrix reads words and writes them."""
    every_region(model)
    model.embedding.tokens = VocabularyEmbedding(model.embedding.tokens)
    model.head.weight = model.embedding.tokens.weight
    enter(model.head)


def gradient_norm(model: nn.Module) -> Tensor:
    """Of the whole gradient: the squares of parts add up over ranks,
    and what is whole on every rank counts once."""
    squares = {True: 0.0, False: 0.0}
    for w in model.parameters():
        squares[hasattr(w, "cut")] += w.grad.square().sum()
    return (all_reduce(squares[True]) + squares[False]).sqrt()


def whole(model: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` as one device would have it, to save it."""
    state = model.state_dict(keep_vars=True)
    for name, w in state.items():
        if hasattr(w, "cut"):  # parts may differ in size
            parts = [None] * dist.get_world_size()
            dist.all_gather_object(parts, w.detach().cpu())
            state[name] = torch.cat(parts, w.cut)
    return state


def train(model, batches, make_optimizer, loss_fn, split=vocabulary):
    """Yields each step's loss and the norm of the whole gradient."""
    words = model.config.vocab_size
    split(model)
    model.whole = lambda: whole(model)
    if split is vocabulary:
        loss_fn = partial(cross_entropy, words=words)
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        norm = gradient_norm(model)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), norm


RUNGS = {
    "every layer": {"split": every_layer},
    "every region": {"split": every_region},
    "vocabulary, too": {"split": vocabulary},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand import main
    from course_lib.observe.by_hand.traffic import tensor_parallel

    sent = tensor_parallel
    main(train, RUNGS, same_samples=True, tp=None, traffic=sent)
