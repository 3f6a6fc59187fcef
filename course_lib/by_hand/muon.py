"""Muon by hand, and what it costs when a matrix lies in shards
(Jordan et al., kellerjordan.github.io/posts/muon; on many ranks:
Liu et al., arXiv:2502.16982).

Adam scales each number of a gradient by itself, so a shard is enough
for it. Muon turns a whole matrix: all directions of the update get
nearly the same length. Half of a matrix does not say what to do.

So each matrix has an owner. All ranks send it their rows, it turns
the matrix, and sends the rows back: one gather and one scatter, and
each matrix is turned once.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.runtime import trace

# torch 2.13 has renamed the two, and warns of their old names.
all_gather = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)
reduce_scatter = getattr(
    dist, "reduce_scatter_single", dist.reduce_scatter_tensor
)


def orthogonalize(g: Tensor, steps: int = 5) -> Tensor:
    """(n, m) -> (n, m) with the same singular vectors, and singular
    values near 1: between about 0.7 and 1.2 (Newton and Schulz)."""
    a, b, c = 3.4445, -4.7750, 2.0315  # p(s) = a s + b s^3 + c s^5
    x = g if len(g) <= g.shape[1] else g.T  # the smaller square
    x = x / x.norm().clamp(min=1e-7)  # all singular values <= 1
    for _ in range(steps):
        square = x @ x.T
        square = torch.addmm(square, square, square, beta=b, alpha=c)
        x = torch.addmm(x, square, x, beta=a)
    return x if len(g) <= g.shape[1] else x.T


class OneDevice(torch.optim.Optimizer):
    """Muon of whole matrices: (n, m) weights, gradients, momenta."""

    def __init__(self, matrices, lr=0.02, momentum=0.95) -> None:
        self.matrices = matrices
        super().__init__(self.hold(), {"lr": lr, "momentum": momentum})
        self.held = self.param_groups[0]["params"]

    def hold(self) -> list[nn.Parameter]:
        """The part of each matrix that this rank updates: all of it."""
        return self.matrices

    def gradients(self) -> list[Tensor]:
        """Of what it holds, the mean over the ranks."""
        return [w.grad for w in self.matrices]

    def turn(self, updates: list[Tensor]) -> list[Tensor]:
        return [orthogonalize(u) for u in updates]

    def squares(self) -> Tensor:
        """Sum over all gradients, for their norm."""
        squares = [g.square().sum() for g in self.grads]
        return torch.stack(squares).sum()

    @torch.no_grad()
    def step(self) -> None:
        updates, mu = [], self.defaults["momentum"]
        for w, g in zip(self.held, self.grads, strict=True):
            old = self.state[w].get("momentum", torch.zeros_like(g))
            self.state[w]["momentum"] = old.lerp_(g, 1 - mu)
            updates.append(g.lerp(old, mu))  # Nesterov's
        turned = self.turn(updates)
        for w, held, t in zip(
            self.matrices, self.held, turned, strict=True
        ):
            tall = math.sqrt(max(1, w.shape[0] / w.shape[1]))
            held.sub_(t, alpha=self.defaults["lr"] * tall)


class EveryRank(OneDevice):
    """Each rank turns each matrix: p times the same work."""

    def gradients(self) -> list[Tensor]:
        for w in self.matrices:
            average(w.grad)
        return super().gradients()


class Gathered(OneDevice):
    """A rank holds 1/p of the rows of each matrix, and of its momentum.
    What is turned is gathered on all ranks: still p times the work."""

    def hold(self) -> list[nn.Parameter]:
        self.p, self.rank = dist.get_world_size(), dist.get_rank()
        rows = [self.own_rows(w.detach()) for w in self.matrices]
        return [nn.Parameter(r.clone()) for r in rows]

    def padded(self, whole: Tensor) -> Tensor:
        """(n, m) -> (p * rows, m). Rows of zeros change no other row."""
        empty = whole.new_zeros(-len(whole) % self.p, whole.shape[1])
        return torch.cat([whole, empty])

    def own_rows(self, whole: Tensor) -> Tensor:
        return self.padded(whole).chunk(self.p)[self.rank]

    def gradients(self) -> list[Tensor]:
        means = []
        for w, held in zip(self.matrices, self.held, strict=True):
            means.append(torch.empty_like(held))
            whole = self.padded(w.grad) / self.p
            with trace.span("communication", "reduce-scatter"):
                reduce_scatter(means[-1], whole)
        return means

    def squares(self) -> Tensor:
        total = super().squares()
        dist.all_reduce(total)
        return total

    def gather(self, rows: Tensor) -> Tensor:
        """(rows, m) on each rank -> (p * rows, m) on all."""
        whole = rows.new_empty(self.p * len(rows), rows.shape[1])
        with trace.span("communication", "all-gather"):
            all_gather(whole, rows)
        return whole

    def turn(self, updates: list[Tensor]) -> list[Tensor]:
        whole = [orthogonalize(self.gather(u)) for u in updates]
        return [self.own_rows(w) for w in whole]

    @torch.no_grad()
    def step(self) -> None:
        super().step()
        for w, held in zip(self.matrices, self.held, strict=True):
            w.detach().copy_(self.gather(held)[: len(w)])


class Owned(Gathered):
    """Each matrix is turned by its owner, and by nobody else."""

    def hold(self) -> list[nn.Parameter]:
        held = super().hold()
        work = [0] * self.p
        self.owner = [0] * len(self.matrices)
        costs = [min(w.shape) * w.numel() for w in self.matrices]
        for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
            self.owner[i] = work.index(min(work))  # largest first
            work[self.owner[i]] += costs[i]
        return held

    def turn(self, updates: list[Tensor]) -> list[Tensor]:
        rows = []
        for u, owner in zip(updates, self.owner, strict=True):
            places = self.p if owner == self.rank else 0
            rows.append([torch.empty_like(u) for _ in range(places)])
            with trace.span("communication", "gather"):
                dist.gather(u, rows[-1] or None, owner)
        for i, owner in enumerate(self.owner):
            if owner == self.rank:  # at the same time on all owners
                whole = orthogonalize(torch.cat(rows[i]))
                rows[i] = list(whole.contiguous().chunk(self.p))
        for i, owner in enumerate(self.owner):
            with trace.span("communication", "scatter"):
                dist.scatter(updates[i], rows[i] or None, owner)
        return updates


def average(gradient: Tensor) -> None:
    with trace.span("communication", "all-reduce"):
        dist.all_reduce(gradient)
    gradient /= dist.get_world_size()


def train(model, batches, make_optimizer, loss_fn, kind=Owned, lr=0.02):
    """Muon turns the matrices of the blocks; all others, embeddings and
    norms, get ``make_optimizer``. Yields each step's loss, of this
    rank's samples, and the norm of the averaged gradient."""
    if kind is not OneDevice:
        for t in (*model.parameters(), *model.buffers()):
            dist.broadcast(t.detach(), 0)  # all ranks start alike
    inside = list(model.blocks.parameters())
    matrices = [w for w in inside if w.ndim == 2]
    taken = set(matrices)
    others = [w for w in model.parameters() if w not in taken]
    muon, optimizer = kind(matrices, lr), make_optimizer(others)
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        muon.grads = muon.gradients()
        if kind is not OneDevice:
            for w in others:
                average(w.grad)
        total = sum(w.grad.square().sum() for w in others)
        norm = (total + muon.squares()).sqrt()
        muon.step()
        optimizer.step()
        model.zero_grad()
        yield loss.detach(), norm


RUNGS = {
    "every rank": {"kind": EveryRank},
    "gathered": {"kind": Gathered},
    "an owner for each matrix": {"kind": Owned},
}

if __name__ == "__main__":
    from functools import partial

    from course_lib.observe.by_hand import main
    from course_lib.observe.by_hand.traffic import muon

    alone = partial(train, kind=OneDevice)
    main(train, RUNGS, traffic=muon, alone=alone, optimizer="momentum")
