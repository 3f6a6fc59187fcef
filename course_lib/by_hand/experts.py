"""Experts by hand: a layer has E MLPs, each token visits k of them,
and the experts lie on different ranks.

A router gives each expert e a probability p_e. A token x goes to those
k experts that have the largest, and gets

    y = sum of g_e MLP_e(x),   g_e = p_e / (sum of p over these k)

(Shazeer et al., arXiv:1701.06538). The ranks share the samples, as in
data parallelism, and rank r has E/p of the experts of each layer.

First rung: each token goes to all ranks. Second: it goes to the ranks
of its k experts and back (GShard, Lepikhin et al., arXiv:2006.16668);
an expert takes at most C copies, its capacity, and drops the others.
Third: nothing is dropped, so some ranks have more to do than others.

A router soon sends all tokens to a few experts. Against that there is
a loss, alpha E (f_1 P_1 + ... + f_E P_E), of the share f_e of all
copies and the mean probability P_e (Fedus et al., arXiv:2101.03961).
Fourth rung: no such loss, but a bias for each expert, which counts in
the choice alone (Wang et al., arXiv:2408.15664).
"""

import copy
import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.runtime import trace


class Experts(nn.Module):
    """In place of an MLP: (batch, seq, hidden) -> the same. All of it on
    one device."""

    row, own = 0, slice(None)  # of counts; the experts that are here

    def __init__(self, mlp, E=12, k=2, capacity=None, alpha=0.01, u=0.0):
        super().__init__()
        self.E, self.k, self.capacity = E, k, capacity
        self.alpha, self.u = alpha, u
        w = next(mlp.parameters())  # (width, hidden)
        self.router = nn.Linear(w.shape[1], E, bias=False).to(w)
        self.register_buffer("bias", w.new_zeros(E))
        each = {str(e): copy.deepcopy(mlp) for e in range(E)}
        self.experts = nn.ModuleDict(each)
        for w in self.experts.parameters():
            nn.init.normal_(w, std=float(w.detach().std()))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)  # (tokens, hidden)
        p = self.router(tokens).softmax(1)  # (tokens, E)
        chosen = (p.detach() + self.bias).topk(self.k).indices
        g = p.gather(1, chosen)  # (tokens, k)
        g = (g / g.sum(1, keepdim=True)).flatten()

        # Copies of tokens, by expert: copy i is one of token i // k.
        expert, copies = chosen.flatten().sort(stable=True)
        sizes = expert.bincount(minlength=self.E)
        counts = self.of_all_ranks(sizes)  # (p, E)
        self.load = counts.sum(0).to(p)
        f = self.load / self.load.sum()
        self.balance = self.alpha * self.E * f @ p.mean(0)

        self.kept = self.within_capacity(counts)
        most = self.kept[self.row].tolist()
        each = zip(copies.split(sizes.tolist()), most, strict=True)
        copies = torch.cat([some[:n] for some, n in each])
        y = self.visit(tokens[copies // self.k]) * g[copies, None]
        # A token that is dropped everywhere gets zeros.
        y = torch.zeros_like(tokens).index_add(0, copies // self.k, y)
        return y.view_as(x)

    def of_all_ranks(self, sizes: Tensor) -> Tensor:
        return sizes[None]

    def within_capacity(self, counts: Tensor) -> Tensor:
        """How many copies from each rank each expert takes, (p, E). The
        trick: what is dropped must not depend on the number of ranks.
        So C is that of the whole batch, and rank 0 comes first."""
        if self.capacity is None:
            return counts
        C = math.ceil(self.capacity * int(counts.sum()) / self.E)
        left = C - (counts.cumsum(0) - counts)
        return left.clamp(min=0).minimum(counts)

    def visit(self, x: Tensor) -> Tensor:
        """(copies, hidden), by expert -> what the experts make of it."""
        return self.ask(x, self.kept[0, self.own])

    def ask(self, x: Tensor, sizes: Tensor) -> Tensor:
        parts = x.split(sizes.tolist())  # an expert may get nothing
        each = zip(self.experts.values(), parts, strict=True)
        return torch.cat([expert(part) for expert, part in each])


class AllToAll(torch.autograd.Function):
    """``there[r]`` rows go to rank r, ``back[r]`` come from it; of the
    gradient as many the other way."""

    @staticmethod
    def forward(ctx, x: Tensor, there: list, back: list) -> Tensor:
        ctx.splits = back, there
        came = x.new_empty(sum(back), *x.shape[1:])
        with trace.waiting(), trace.span("communication", "all-to-all"):
            dist.all_to_all_single(came, x.contiguous(), back, there)
        return came

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return AllToAll.apply(gradient, *ctx.splits), None, None


class OnRanks(Experts):
    def keep_own(self) -> None:
        """E/p experts; the first ranks may have one more."""
        parts = torch.arange(self.E).tensor_split(dist.get_world_size())
        self.own = parts[dist.get_rank()]
        for e in {*range(self.E)} - {*self.own.tolist()}:
            del self.experts[str(e)]


class Everywhere(OnRanks):
    """First rung: each rank gets all tokens, (p batch, seq, hidden), and
    asks its own experts. What these say is added up."""

    def forward(self, x: Tensor) -> Tensor:
        n = [len(x)] * dist.get_world_size()
        x = AllToAll.apply(x.repeat(len(n), 1, 1), n, n)
        y = AllToAll.apply(super().forward(x), n, n)
        return y.unflatten(0, (len(n), -1)).sum(0)

    def within_capacity(self, counts: Tensor) -> Tensor:
        kept = torch.zeros_like(counts)
        kept[:, self.own] = super().within_capacity(counts)[:, self.own]
        return kept


class Dispatched(OnRanks):
    """Second rung and later: a copy goes to the rank of its expert."""

    def of_all_ranks(self, sizes: Tensor) -> Tensor:
        self.row = dist.get_rank()
        counts = sizes.new_empty(dist.get_world_size(), self.E)
        with trace.waiting(), trace.span("communication", "counts"):
            dist.all_gather([*counts], sizes)
        return counts

    def visit(self, x: Tensor) -> Tensor:
        to = self.kept.tensor_split(len(self.kept), 1)  # (p, E/p) each
        there = [int(copies[self.row].sum()) for copies in to]
        came = to[self.row]
        back = came.sum(1).tolist()
        x = regroup(AllToAll.apply(x, there, back), came)
        y = regroup(self.ask(x, came.sum(0)), came.T)
        return AllToAll.apply(y, back, there)


def regroup(x: Tensor, sizes: Tensor) -> Tensor:
    """Rows that lie by rank, and for each rank by expert, the other way
    round: by expert first. ``sizes`` is (ranks, experts)."""
    blocks, n = x.split(sizes.flatten().tolist()), sizes.shape[1]
    return torch.cat([part for e in range(n) for part in blocks[e::n]])


def sum_gradients(model: nn.Module, p: int) -> Tensor:
    """Returns the norm of the whole gradient. An expert has seen the
    tokens of all ranks: its gradient is whole, so it is not summed."""
    squares = {True: 0.0, False: 0.0}
    with trace.span("communication", "all-reduce"):
        for name, w in model.named_parameters():
            owned = ".experts." in name
            if p > 1 and not owned:
                dist.all_reduce(w.grad)
            squares[owned] += w.grad.square().sum()
        if p > 1:
            dist.all_reduce(squares[True])
    return (squares[True] + squares[False]).sqrt()


def whole(model: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` with the experts of all ranks, to save it."""
    parts = [None] * dist.get_world_size()
    own = {name: t.cpu() for name, t in model.state_dict().items()}
    dist.all_gather_object(parts, own)
    return {name: t for part in parts for name, t in part.items()}


def train(
    model, batches, make_optimizer, loss_fn, kind=Dispatched, **settings
):
    """Yields each step's loss, of this rank's samples and without the
    balance, and the norm of the whole gradient."""
    p = 1 if kind is Experts else dist.get_world_size()
    for block in model.blocks:
        block.mlp = kind(block.mlp, **settings)
    layers = [block.mlp for block in model.blocks]
    if kind is not Experts:
        for t in (*model.parameters(), *model.buffers()):
            dist.broadcast(t.detach(), 0)  # all ranks start alike
        for layer in layers:
            layer.keep_own()
        model.whole = lambda: whole(model)
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        balance = sum(layer.balance for layer in layers)
        # Over p here: what an expert adds up over ranks is a mean then.
        ((loss + balance) / p).backward()
        norm = sum_gradients(model, p)
        optimizer.step()
        optimizer.zero_grad()
        for layer in layers:
            less = layer.load.mean() - layer.load
            layer.bias += layer.u * less.sign()
        yield loss.detach(), norm


RUNGS = {
    "everywhere": {"kind": Everywhere},
    "capacity": {"capacity": 1.25},
    "dropless": {},
    "balanced by a bias": {"alpha": 0.0, "u": 0.01},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand import main
    from course_lib.observe.by_hand.traffic import experts

    has = {"experts": 12, "experts_per_token": 2}
    alone = {"kind": Experts}
    main(train, RUNGS, ep=None, traffic=experts, shape=has, alone=alone)
