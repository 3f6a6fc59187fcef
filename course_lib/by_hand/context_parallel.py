"""Context parallelism by hand: each rank has seq/p tokens of a text, in
all layers, and only attention needs those of the others.

Rank r has queries Q_r, keys K_r and values V_r. First rung: gather all
keys and values, which are as long as the text. Second, ring attention
(Liu et al., arXiv:2310.01889): they go around a ring, and a rank never
has more than two ranks' at a time. Attention to the keys of one rank is
a part; two parts O_1 and O_2, with L the logarithm of each row's sum of
exp(score), are joined as the online softmax does:

    L = log(exp L_1 + exp L_2)    O = exp(L_1-L) O_1 + exp(L_2-L) O_2

A token sees those before it, so the last rank has the most to do. Third
rung, zigzag: cut the text in 2p pieces, and let rank r have the pieces
r and 2p-1-r, an early and a late one. Then all have as much to do.
Fourth, Ulysses (Jacobs et al., arXiv:2309.14509): an all-to-all gives
each rank all tokens of some heads, and another one takes them back.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from course_lib.runtime import trace


def pieces_of(rank: int, n: int) -> list[int]:
    """The numbers of a rank's pieces: n is 1, or in zigzag 2."""
    return [rank, 2 * dist.get_world_size() - 1 - rank][:n]


def own_tokens(x: Tensor, n: int) -> Tensor:
    """(batch, seq) -> (batch, seq/p), this rank's n pieces."""
    every = n * dist.get_world_size()
    if x.shape[1] % every:
        raise ValueError(f"{x.shape[1]} tokens are not {every} pieces")
    own = pieces_of(dist.get_rank(), n)
    return torch.cat([x.chunk(every, 1)[i] for i in own], 1)


# ---- first rung: all keys on every rank ------------------------------


class Gather(torch.autograd.Function):
    """(..., seq/p, size) on each rank -> (p, ..., seq/p, size) on all;
    each rank's gradient of the whole is an addend."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        parts = x.new_empty(dist.get_world_size(), *x.shape)
        with trace.waiting(), trace.span("communication", "all-gather"):
            dist.all_gather([*parts], x)
        return parts

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        own = torch.empty_like(gradient[0])
        with trace.waiting(), trace.span("communication", "scatter"):
            dist.reduce_scatter(own, [*gradient.contiguous()])
        return own


def gathered(q: Tensor, k: Tensor, v: Tensor, n: int = 1) -> Tensor:
    """(batch, heads, seq/p, size) of each, and of the result. Pieces
    stand in the order of the text: no zigzag."""
    keys, values = torch.cat([*Gather.apply(torch.stack([k, v]))], 3)
    rows, before = q.shape[2], q.shape[2] * dist.get_rank()
    seen = torch.ones(rows, keys.shape[2], device=q.device).tril(before)
    return scaled_dot_product_attention(q, keys, values, seen.bool())


# ---- second and third rung: keys go around a ring --------------------


@contextmanager
def passing(x: Tensor) -> Iterator[Tensor]:
    """Meanwhile x goes to the next rank, and that of the one before
    comes; it is there at the end."""
    rank, p = dist.get_rank(), dist.get_world_size()
    # Gloo takes no tensor of a GPU, where ranks share one.
    wire = "cpu" if dist.get_backend() == "gloo" else x.device
    coming = x.clone()  # a single rank's own
    out, came = x.to(wire), coming.to(wire)
    send = dist.P2POp(dist.isend, out, (rank + 1) % p)
    receive = dist.P2POp(dist.irecv, came, (rank - 1) % p)
    with trace.span("communication", "passed on"):
        works = dist.batch_isend_irecv([send, receive]) if p > 1 else []
        yield coming
        with trace.waiting():
            for work in works:
                work.wait()
    coming.copy_(came)


def around(x: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each rank and its x, this one first. While one is worked on, the
    next is on its way."""
    rank, p = dist.get_rank(), dist.get_world_size()
    for step in range(p - 1):
        with passing(x) as coming:
            yield (rank - step) % p, x
        x = coming
    yield (rank + 1) % p, x


def meetings(rank: int, n: int) -> Iterator[tuple[int, int, bool]]:
    """Which of this rank's pieces see which of another rank's, and if
    they are the same piece: only then some of the keys are hidden."""
    for a, i in enumerate(pieces_of(dist.get_rank(), n)):
        for b, j in enumerate(pieces_of(rank, n)):
            if j <= i:  # later keys cost nothing
                yield a, b, i == j


def scores(q: Tensor, k: Tensor, same: bool) -> Tensor:
    S = q @ k.mT
    later = torch.ones_like(S[0, 0], dtype=torch.bool).triu(1)
    return S.masked_fill(later, -torch.inf) if same else S


class Ring(torch.autograd.Function):
    """(n, batch, heads, rows, size) of each: n pieces. Saves those of
    this rank, with O and L."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        O = torch.zeros_like(q)
        L = torch.full_like(q[..., :1], -torch.inf)
        for rank, (k_r, v_r) in around(torch.stack([k, v])):
            for a, b, same in meetings(rank, len(q)):
                S = scores(q[a], k_r[b], same)
                both = L[a].logaddexp(S.logsumexp(-1, keepdim=True))
                O[a] *= (L[a] - both).exp()
                O[a] += (S - both).exp() @ v_r[b]
                L[a] = both
        ctx.save_for_backward(q, k, v, O, L)
        return O

    @staticmethod
    def backward(ctx, dO: Tensor) -> tuple[Tensor, ...]:
        """The trick: the gradient of keys and values follows them, one
        step behind, and each rank adds what it knows. The p-th step
        brings it home."""
        q, k, v, O, L = ctx.saved_tensors
        D, dq = (dO * O).sum(-1, keepdim=True), torch.zeros_like(q)
        follow = nullcontext(0)
        for rank, (k_r, v_r) in around(torch.stack([k, v])):
            with follow as before:
                dk, dv = dkv = torch.zeros_like(torch.stack([k, v]))
                for a, b, same in meetings(rank, len(q)):
                    P = (scores(q[a], k_r[b], same) - L[a]).exp()
                    dS = P * (dO[a] @ v_r[b].mT - D[a])
                    dv[b] += P.mT @ dO[a]
                    dq[a] += dS @ k_r[b]
                    dk[b] += dS.mT @ q[a]
            follow = passing(dkv + before)
        with follow as home:
            pass
        return dq, *home


def ring(q: Tensor, k: Tensor, v: Tensor, n: int) -> Tensor:
    """(batch, heads, seq/p, size) of each, and of the result."""
    scaled = q / q.shape[-1] ** 0.5, k, v
    q, k, v = (torch.stack(x.chunk(n, 2)) for x in scaled)
    return torch.cat([*Ring.apply(q, k, v)], 2)


# ---- fourth rung: all tokens of some heads ---------------------------


class Exchange(torch.autograd.Function):
    """This rank's part of ``join`` and all of ``cut`` -> all of
    ``join`` and this rank's part of ``cut``."""

    @staticmethod
    def forward(ctx, x: Tensor, cut: int, join: int) -> Tensor:
        ctx.back = join, cut
        out = torch.stack(x.chunk(dist.get_world_size(), cut))
        came = torch.empty_like(out)
        with trace.waiting(), trace.span("communication", "all-to-all"):
            dist.all_to_all_single(came, out)
        return torch.cat([*came], join)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return Exchange.apply(gradient, *ctx.back), None, None


def all_to_all(q: Tensor, k: Tensor, v: Tensor, n: int = 1) -> Tensor:
    """(batch, heads, seq/p, size) to (batch, heads/p, seq, size) and
    back. No zigzag either."""
    q, k, v = Exchange.apply(torch.stack([q, k, v]), 2, 3)
    O = scaled_dot_product_attention(q, k, v, is_causal=True)
    return Exchange.apply(O, 2, 1)


# ---- training --------------------------------------------------------


def train(model, batches, make_optimizer, loss_fn, attend=ring, n=2):
    """Yields each step's loss, of this rank's tokens, and the norm of
    the whole gradient."""
    own = partial(own_tokens, n=n)

    def embed(_, inputs):
        at = torch.ones_like(inputs[0][:1]).cumsum(1) - 1  # (1, seq)
        return own(inputs[0]), own(at)

    model.embedding.register_forward_pre_hook(embed)
    for block in model.blocks:
        block.attention.core.forward = partial(attend, n=n)
    parameters = list(model.parameters())
    optimizer = make_optimizer(parameters)
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), own(targets))
        (loss / dist.get_world_size()).backward()
        with trace.span("communication", "all-reduce"):
            for w in parameters:  # each rank has seen its tokens only
                dist.all_reduce(w.grad)
        norm = nn.utils.get_total_norm([w.grad for w in parameters])
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), norm


RUNGS = {
    "all-gather": {"attend": gathered, "n": 1},
    "ring": {"n": 1},
    "ring, zigzag": {"n": 2},
    "all-to-all": {"attend": all_to_all, "n": 1},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand import main
    from course_lib.observe.by_hand.traffic import context_parallel

    context = {name: name.split(",")[0] for name in RUNGS}
    zigzag = {name: "zigzag" in name for name in RUNGS}
    same = {"same_samples": True, "traffic": context_parallel}
    main(train, RUNGS, cp=None, context=context, zigzag=zigzag, **same)
