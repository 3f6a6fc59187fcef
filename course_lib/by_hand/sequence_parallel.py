"""Sequence parallelism by hand: tensor parallelism that leaves no work
and no memory to all ranks alike.

Korthikanti et al., arXiv:2205.05198. Between its regions, attention and
MLP, tensor parallelism has every rank compute the same norms, dropout
and sums on all tokens, and save them for backward. Here a rank does so
on its seq/p tokens. An all-reduce is a reduce-scatter followed by an
all-gather; the tokens are whole only from one to the other:

    g      enters a region    all-gather; backward: reduce-scatter
    g-bar  leaves a region    reduce-scatter; backward: all-gather

As many bytes are sent as with f and g. Of the 34 s b h bytes that a
layer saves in 16 bits (s tokens, b samples, h hidden; without scores)
10 s b h are saved between the regions, and 1/p of them remains.

On the first rung a region saves its input as it was gathered. On the
second it saves this rank's tokens, and gathers them again in backward:
one all-gather more, 1/p of the bytes.
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import linear

from course_lib.runtime import trace

# torch 2.13 has renamed the two, and warns of their old names.
all_gather = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)
reduce_scatter = getattr(
    dist, "reduce_scatter_single", dist.reduce_scatter_tensor
)


def gather(x: Tensor) -> Tensor:
    """(batch, seq/p, hidden) on each rank -> (batch, seq, hidden)."""
    p = dist.get_world_size()
    parts = x.new_empty(p * len(x), *x.shape[1:])
    with trace.waiting(), trace.span("communication", "all-gather"):
        all_gather(parts, x.contiguous())
    return torch.cat(parts.chunk(p), dim=1)


def scatter(x: Tensor) -> Tensor:
    """(batch, seq, hidden) on each rank -> (batch, seq/p, hidden), this
    rank's tokens of the sum."""
    p = dist.get_world_size()
    parts = torch.cat(x.chunk(p, dim=1))  # (p * batch, seq/p, hidden)
    own = x.new_empty(len(x), *parts.shape[1:])
    with trace.waiting(), trace.span("communication", "reduce-scatter"):
        reduce_scatter(own, parts)
    return own


class EnterRegion(torch.autograd.Function):
    """g: each rank's gradient of the whole is an addend."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return gather(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return scatter(gradient)


class LeaveRegion(torch.autograd.Function):
    """g-bar: each rank's result is an addend."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return scatter(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gather(gradient)


g, g_bar = EnterRegion.apply, LeaveRegion.apply


class KeepShard(saved_tensors_hooks):
    """The trick: autograd asks ``pack`` what to save of a tensor, and
    ``unpack`` for the tensor. So of the gathered input of a region we
    save its shape, and nothing else changes."""

    def __init__(self, shard: Tensor, whole: Tensor) -> None:
        super().__init__(self.pack, self.unpack)
        self.shard = shard.detach()
        self.address = whole.untyped_storage().data_ptr()
        self.readers = 0  # query, key and value gather once together
        self.again = None

    def pack(self, t: Tensor):
        if t.untyped_storage().data_ptr() != self.address:
            return t
        self.readers += 1
        return t.shape

    def unpack(self, saved) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if self.again is None:
            self.again = gather(self.shard)
        whole = self.again.view(saved)
        self.readers -= 1
        if self.readers == 0:
            self.again = None
        return whole


def cut(w: Tensor, dim: int, unit: int = 1) -> nn.Parameter:
    """This rank's part: units of so many rows (such as heads) stay
    whole, and the first ranks may have one more."""
    units = w.detach().unflatten(dim, (-1, unit))
    parts = units.tensor_split(dist.get_world_size(), dim)
    part = parts[dist.get_rank()].flatten(dim, dim + 1)
    own = nn.Parameter(part.clone())  # so that the whole can be freed
    own.cut = dim
    return own


def cut_columns(layer: nn.Linear, unit: int = 1) -> None:
    """(batch, seq, in) -> (batch, seq, out/p): all tokens, some columns.
    PyTorch stores the matrix transposed."""
    layer.weight = cut(layer.weight, 0, unit)  # (out/p, in)
    layer.bias = cut(layer.bias, 0, unit)


class Row(nn.Module):
    """(batch, seq, in/p) -> (batch, seq/p, out): all columns of some
    tokens. The bias is added to this rank's tokens."""

    def __init__(self, whole: nn.Linear, unit: int = 1) -> None:
        super().__init__()
        self.weight = cut(whole.weight, 1, unit)  # (out, in/p)
        self.bias = whole.bias

    def forward(self, y: Tensor) -> Tensor:
        return g_bar(linear(y, self.weight)) + self.bias


def make_region(module: nn.Module, keep_shard: bool) -> None:
    """Its input enters through g; a Row inside leaves through g-bar."""
    inside = module.forward

    def forward(x: Tensor, *others) -> Tensor:
        whole = g(x)
        with KeepShard(x, whole) if keep_shard else nullcontext():
            return inside(whole, *others)

    module.forward = forward


def own_tokens(x: Tensor) -> Tensor:
    """(batch, seq) -> (batch, seq/p), this rank's."""
    p = dist.get_world_size()
    if x.shape[1] % p:
        raise ValueError(f"{p} ranks cannot share {x.shape[1]} tokens")
    return x.chunk(p, dim=1)[dist.get_rank()]


def embed_own_tokens(module: nn.Module, inputs):
    tokens = own_tokens(inputs[0])
    start = dist.get_rank() * tokens.shape[1]
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    return tokens, start + positions


def sequence_parallel(model: nn.Module, keep_shard: bool) -> None:
    """Cuts ``model`` in place, whole heads on each rank. It takes all
    tokens, and gives the logits of this rank's."""
    model.embedding.register_forward_pre_hook(embed_own_tokens)
    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        size = attention.head_size
        for layer in (attention.query, attention.key, attention.value):
            cut_columns(layer, size)
        attention.output = Row(attention.output, size)
        cut_columns(mlp.up)
        mlp.down = Row(mlp.down)
        make_region(attention, keep_shard)
        make_region(mlp, keep_shard)


def sum_gradients(model: nn.Module) -> Tensor:
    """What every rank has in full saw its tokens only: embeddings,
    norms, biases of rows. Returns the norm of the whole gradient."""
    cuts, wholes = [], []
    for w in model.parameters():
        (cuts if hasattr(w, "cut") else wholes).append(w.grad)
    flat = torch.cat([gradient.flatten() for gradient in wholes])
    square = sum(gradient.square().sum() for gradient in cuts)
    with trace.span("communication", "all-reduce"):
        dist.all_reduce(flat)
        dist.all_reduce(square)
    sums = flat.split([gradient.numel() for gradient in wholes])
    for gradient, total in zip(wholes, sums, strict=True):
        gradient.copy_(total.view_as(gradient))
    return (square + flat.square().sum()).sqrt()


def whole(model: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` as one device would have it, to save it."""
    state = model.state_dict(keep_vars=True)
    for name, w in state.items():
        if hasattr(w, "cut"):  # parts may differ in size
            parts = [None] * dist.get_world_size()
            dist.all_gather_object(parts, w.detach().cpu())
            state[name] = torch.cat(parts, w.cut)
    return state


def train(model, batches, make_optimizer, loss_fn, keep_shard=True):
    """Yields each step's loss, of this rank's tokens, and the norm of
    the whole gradient."""
    sequence_parallel(model, keep_shard)
    model.whole = lambda: whole(model)
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), own_tokens(targets))
        (loss / dist.get_world_size()).backward()
        norm = sum_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), norm


RUNGS = {
    "the whole is saved": {"keep_shard": False},
    "the shard is saved": {},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand import main
    from course_lib.observe.by_hand.traffic import in_sequence

    same = {"same_samples": True, "traffic": in_sequence}
    main(train, RUNGS, tp=None, sequence_parallel=True, **same)
