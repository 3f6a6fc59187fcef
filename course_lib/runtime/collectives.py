"""Collectives, each made only of sends and receives.

``p`` is the number of ranks of the group, ``n`` the bytes of the whole tensor. Every function returns a new
tensor and does not change its input. Where the rows of a tensor are dealt out to the ranks, p need not divide their
number: the first ranks get one row more (``simulator.inputs.chunks.chunk_sizes``).

Names and ring algorithms after Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005), and Patarasuk and Yuan, "Bandwidth optimal all-reduce" (2009).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from simulator.inputs.chunks import chunk_sizes

REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "mean": torch.add,  # and divided by p at the end
    "product": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}


# ---- point to point: the collectives below use only these ----------------------------------------------------------


def send(t: Tensor, to: int, group: ProcessGroup | None = None) -> None:
    """Send ``t`` to rank ``to`` of the group; returns when ``t`` may be changed again."""
    if t.numel():
        dist.send(_for_wire(t, group), group=group, group_dst=_other(to, group))


def receive(like: Tensor, source: int, group: ProcessGroup | None = None) -> Tensor:
    """Wait for a tensor with the shape and dtype of ``like`` from rank ``source`` of the group."""
    buffer = _buffer_like(like, group)
    if buffer.numel():
        dist.recv(buffer, group=group, group_src=_other(source, group))
    return buffer.to(like.device)


def exchange(t: Tensor, to: int, like: Tensor, source: int, group: ProcessGroup | None = None) -> Tensor:
    """Send ``t`` to rank ``to`` and receive a tensor like ``like`` from rank ``source``, both at the same time.

    Around a ring every rank does both. If each sent first and received afterwards, all would wait for their
    receivers. NCCL runs the operations of one rank one after the other unless they are issued as a batch.
    """
    outgoing, incoming = _for_wire(t, group), _buffer_like(like, group)
    operations = []
    if outgoing.numel():
        operations.append(dist.P2POp(dist.isend, outgoing, group=group, group_peer=_other(to, group)))
    if incoming.numel():
        operations.append(dist.P2POp(dist.irecv, incoming, group=group, group_peer=_other(source, group)))
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    return incoming.to(like.device)


# ---- one rank and the others ------------------------------------------------------------------------------


@torch.no_grad()
def broadcast(t: Tensor, src: int = 0, group: ProcessGroup | None = None) -> Tensor:
    """Every rank gets ``t`` of rank ``src``, along a binomial tree: ceil(log2 p) rounds, p-1 messages of n bytes.

    In round k each of the 2^k ranks that have the tensor sends it to one rank that does not have it yet.
    """
    p, me = _group(group, src)
    position = (me - src) % p  # the root sits at position 0
    result = t.clone(memory_format=torch.contiguous_format)
    distance = 1
    while distance < p:
        if position < distance and position + distance < p:
            send(result, (me + distance) % p, group)
        elif distance <= position < 2 * distance:
            result = receive(t, (me - distance) % p, group)
        distance *= 2
    return result


@torch.no_grad()
def reduce(t: Tensor, dst: int = 0, op: str = "sum", group: ProcessGroup | None = None) -> Tensor | None:
    """Rank ``dst`` gets the reduction of all ranks' ``t``, along the same tree backwards; the others get None."""
    p, me = _group(group, dst)
    combine = _reduction(op, t)
    position = (me - dst) % p
    result = t.clone(memory_format=torch.contiguous_format)
    distance = 1
    while distance < p:
        distance *= 2
    while (distance := distance // 2) > 0:
        if distance <= position < 2 * distance:
            send(result, (me - distance) % p, group)
        elif position < distance and position + distance < p:
            result = combine(result, receive(t, (me + distance) % p, group))
    if position != 0:
        return None
    return result / p if op == "mean" else result


@torch.no_grad()
def scatter(t: Tensor, src: int = 0, group: ProcessGroup | None = None) -> Tensor:
    """Rank r gets the r-th chunk of rows of the ``t`` of rank ``src``; others pass any tensor of its shape."""
    p, me = _group(group, src)
    chunks = _rows(t, p)
    if me != src:
        return receive(chunks[me], src, group)
    for rank in range(p):
        if rank != src:
            send(chunks[rank], rank, group)
    return chunks[src].clone()


@torch.no_grad()
def gather(
    t: Tensor, dst: int = 0, rows: Sequence[int] | None = None, group: ProcessGroup | None = None
) -> Tensor | None:
    """Rank ``dst`` gets the rows of all ranks, in rank order; the others get None.

    Args:
        t: (rows of this rank, …).
        rows: how many rows each rank has; by default as many as this one.
    """
    p, me = _group(group, dst)
    shapes = _shards(t, rows, p, me)
    if me != dst:
        send(t, dst, group)
        return None
    return torch.cat([t if rank == me else receive(shapes[rank], rank, group) for rank in range(p)])


# ---- between all ranks --------------------------------------------------------------------------------


@torch.no_grad()
def all_gather(t: Tensor, rows: Sequence[int] | None = None, group: ProcessGroup | None = None) -> Tensor:
    """Every rank gets the rows of all ranks, in rank order: p-1 steps around a ring, (p-1)/p n bytes sent by each.

    In each step every rank sends to the rank on its right what it received from its left in the step before.

    Args:
        t: (rows of this rank, …).
        rows: how many rows each rank has; by default as many as this one.
    """
    p, me = _group(group)
    chunks = _shards(t, rows, p, me)
    chunks[me] = t
    for step in range(p - 1):
        mine, theirs = (me - step) % p, (me - step - 1) % p
        chunks[theirs] = exchange(chunks[mine], (me + 1) % p, chunks[theirs], (me - 1) % p, group)
    return torch.cat(chunks)


@torch.no_grad()
def reduce_scatter(t: Tensor, op: str = "sum", group: ProcessGroup | None = None) -> Tensor:
    """Rank r gets the r-th chunk of rows of the reduction: p-1 steps around a ring, (p-1)/p n bytes sent by each.

    Each chunk travels around the ring once, and every rank adds its own chunk to what it received before it
    sends the sum on.
    """
    p, me = _group(group)
    combine = _reduction(op, t)
    chunks = _rows(t, p)
    for step in range(p - 1):
        mine, theirs = (me - step - 1) % p, (me - step - 2) % p
        received = exchange(chunks[mine], (me + 1) % p, chunks[theirs], (me - 1) % p, group)
        chunks[theirs] = combine(chunks[theirs], received)
    return chunks[me] / p if op == "mean" else chunks[me].clone()


@torch.no_grad()
def all_reduce(
    t: Tensor, op: str = "sum", algorithm: str = "ring", group: ProcessGroup | None = None
) -> Tensor:
    """Every rank gets the reduction of all ranks' ``t``.

    ``"naive"``: all send to rank 0, which sends the result back to each: (p-1) n bytes sent by rank 0.
    ``"tree"``: reduce, then broadcast, in 2 log2 p rounds of n bytes. ``"ring"``: reduce-scatter, then
    all-gather, 2 (p-1) rounds of n/p bytes: 2 (p-1)/p n bytes sent by every rank, which is the least possible.
    """
    if algorithm not in ALL_REDUCE:
        raise ValueError(f"algorithm must be one of {', '.join(ALL_REDUCE)}, not {algorithm!r}")
    return ALL_REDUCE[algorithm](t, op, group)


def all_reduce_naive(t: Tensor, op: str, group: ProcessGroup | None) -> Tensor:
    p, me = _group(group)
    combine = _reduction(op, t)
    if me != 0:
        send(t, 0, group)
        return receive(t, 0, group)
    total = t.clone(memory_format=torch.contiguous_format)
    for rank in range(1, p):
        total = combine(total, receive(t, rank, group))
    total = total / p if op == "mean" else total
    for rank in range(1, p):
        send(total, rank, group)
    return total


def all_reduce_tree(t: Tensor, op: str, group: ProcessGroup | None) -> Tensor:
    total = reduce(t, 0, op, group)
    return broadcast(t if total is None else total, 0, group)


def all_reduce_ring(t: Tensor, op: str, group: ProcessGroup | None) -> Tensor:
    flat = t.reshape(-1)
    shard = reduce_scatter(flat, op, group)
    return all_gather(shard, chunk_sizes(flat.numel(), dist.get_world_size(group)), group).view(t.shape)


ALL_REDUCE = {"naive": all_reduce_naive, "tree": all_reduce_tree, "ring": all_reduce_ring}


@torch.no_grad()
def all_to_all(t: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Rank r gets the r-th chunk of rows of every rank, in rank order: a transpose of ranks and chunks.

    p-1 steps; in step s every rank sends to the rank s places to its right: (p-1)/p n bytes sent by each.
    """
    p, me = _group(group)
    chunks = _rows(t, p)
    received = [chunks[me]] * p
    for step in range(1, p):
        to, source = (me + step) % p, (me - step) % p
        received[source] = exchange(chunks[to], to, chunks[me], source, group)
    return torch.cat(received)


def barrier(group: ProcessGroup | None = None) -> None:
    """Return only when every rank has called it: ceil(log2 p) rounds of one byte (the dissemination barrier).

    After round k every rank has received a message that depends on each of the 2^(k+1) - 1 ranks before it.
    """
    p, me = _group(group)
    token = torch.zeros(1, dtype=torch.uint8)
    distance = 1
    while distance < p:
        exchange(token, (me + distance) % p, token, (me - distance) % p, group)
        distance *= 2


# ---- helpers ----------------------------------------------------------------------------------------------


def _group(group: ProcessGroup | None, root: int = 0) -> tuple[int, int]:
    """The size of the group and this rank's place in it."""
    p, me = dist.get_world_size(group), dist.get_rank(group)
    if not 0 <= root < p:
        raise ValueError(f"rank {root} is not in a group of {p} ranks: choose 0 to {p - 1}")
    return p, me


def _other(rank: int, group: ProcessGroup | None) -> int:
    """``rank``, where it is in the group and not this rank itself."""
    if rank == _group(group, rank)[1]:
        raise ValueError(f"rank {rank} cannot send to itself or receive from itself")
    return rank


def _rows(t: Tensor, p: int) -> list[Tensor]:
    """``t`` dealt into ``p`` chunks of rows."""
    if t.dim() == 0:
        raise ValueError("a tensor without dimensions has no rows to deal out: give it one with reshape(1)")
    return list(t.split(chunk_sizes(t.shape[0], p)))


def _shards(t: Tensor, rows: Sequence[int] | None, p: int, me: int) -> list[Tensor]:
    """Empty tensors of the shapes that the ranks hold."""
    if t.dim() == 0:
        raise ValueError("a tensor without dimensions has no rows to gather: give it one with reshape(1)")
    rows = [t.shape[0]] * p if rows is None else list(rows)
    if len(rows) != p or rows[me] != t.shape[0]:
        raise ValueError(f"rows={rows} must hold one number a rank ({p}), and {t.shape[0]} for rank {me}")
    return [t.new_empty(r, *t.shape[1:]) for r in rows]


def _reduction(op: str, t: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    if op not in REDUCTIONS:
        raise ValueError(f"op must be one of {', '.join(REDUCTIONS)}, not {op!r}")
    if op == "mean" and not (t.is_floating_point() or t.is_complex()):
        raise ValueError(f"the mean of {t.dtype} tensors is not {t.dtype}: use sum, or convert to float")
    return REDUCTIONS[op]


def _buffer_like(t: Tensor, group: ProcessGroup | None) -> Tensor:
    """An empty tensor of this shape and dtype, into which the backend can receive."""
    return _for_wire(torch.empty_like(t, memory_format=torch.contiguous_format), group)


def _for_wire(t: Tensor, group: ProcessGroup | None) -> Tensor:
    """``t`` as the backend can send it: contiguous, and in the CPU's memory where ranks share a GPU through Gloo."""
    t = t.detach().contiguous()
    return t.cpu() if t.is_cuda and "nccl" not in dist.get_backend(group) else t
