"""Muon where a rank holds a shard of each matrix (ZeRO, FSDP): every matrix is turned once, by its owner.

A part of a matrix does not say how to turn it. So all ranks send the owner their parts of the update, and get theirs
back turned: two all-to-alls a step, with one message a matrix each way. ``simulator.predict.muon`` deals the matrices
to owners, and counts what each rank sends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.one_device.muon import WholeMatrices, orthogonalize, turned_in
from course_lib.runtime import trace
from simulator.predict.muon import matrix_owners


class Piece(NamedTuple):
    """This rank's part of a matrix.

    Attributes:
        parameter, elements: where it lies: in all of what the optimizer updates, or in some of it.
        shape: of the whole matrix.
        held: its elements on each rank that shares the shards.
    """

    parameter: nn.Parameter
    elements: slice
    shape: torch.Size
    held: list[int]


class ShardedMatrices(WholeMatrices):
    """The ``places`` of a ``MuonWithAdamW`` whose parameters are shards. All ranks make it, and step together.

    >>> optimizer = MuonWithAdamW(muon_groups(fsdp.named_parameters()))                     # doctest: +SKIP
    >>> optimizer.places = ShardedMatrices(optimizer, fsdp.flats)                           # doctest: +SKIP

    Args:
        flats: the flat buffers of ZeRO or FSDP.
    """

    def __init__(self, optimizer: Optimizer, flats: Sequence[Any]) -> None:
        taken = {p for group in optimizer.param_groups if group["muon"] for p in group["params"]}
        sharing: dict[Any, list[Any]] = {}  # fewer ranks share the shards of experts
        for flat in flats:
            sharing.setdefault(flat.group, []).append(flat)
        self.groups = [OfOneGroup(taken, together) for together in sharing.values()]

    def of(self, p: nn.Parameter) -> Iterator[tuple[slice, torch.Size]]:
        pieces = (piece for group in self.groups for piece in group.pieces)
        return ((piece.elements, piece.shape) for piece in pieces if piece.parameter is p)

    def turn(self, updates: dict[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
        turned = {p: turned_in(update) for p, update in updates.items()}
        for group in self.groups:
            if group.pieces:  # on all ranks that share these shards, or on none
                group.turn(turned)
        return turned


class OfOneGroup:
    """The matrices whose shards the same ranks share."""

    def __init__(self, taken: Collection[nn.Parameter], flats: Sequence[Any]) -> None:
        self.flat = flats[0]
        self.pieces = [
            piece
            for flat in flats
            for i, (p, elements) in enumerate(flat.updated_places())
            if p in taken
            for piece in matrices(flat, i, p, elements.start or 0)
        ]
        self.owners = matrix_owners([p.shape for p in self.pieces], [p.held for p in self.pieces])

    def turn(self, turned: dict[nn.Parameter, Tensor]) -> None:
        """In place."""
        ranks, me = range(self.flat.ranks), self.flat.rank
        dealt = [[i for i, owner in enumerate(self.owners) if owner == rank] for rank in ranks]
        # What has no gradient here has a part of zeros, which is not used when it comes back.
        parts = [
            turned[p].flatten()[elements] if p in turned else turned_in(p.new_zeros(held[me]))
            for p, elements, _, held in self.pieces
        ]
        sizes = [[self.pieces[i].held[rank] for i in dealt[me]] for rank in ranks]
        came = self.exchange([[parts[i] for i in theirs] for theirs in dealt], sizes)
        back: list[list[Tensor]] = [[] for _ in ranks]
        for i, rows in zip(dealt[me], zip(*came, strict=True), strict=True):
            whole = orthogonalize(torch.cat(rows).view(self.pieces[i].shape)).flatten()
            for rank, part in zip(ranks, whole.split(self.pieces[i].held), strict=True):
                back[rank].append(part)
        came = self.exchange(back, [[self.pieces[i].held[me] for i in theirs] for theirs in dealt])
        for theirs, rows in zip(dealt, came, strict=True):
            for i, part in zip(theirs, rows, strict=True):
                if self.pieces[i].parameter in turned:
                    turned[self.pieces[i].parameter].flatten()[self.pieces[i].elements].copy_(part)

    def exchange(self, sent: list[list[Tensor]], sizes: list[list[int]]) -> list[list[Tensor]]:
        """Tensors for each rank -> those from each rank, of these sizes, on the device on which they are turned."""
        tensors = [turned_in(self.flat.shard.new_empty(0)), *(t for parts in sent for t in parts)]
        flat = torch.cat([turned_in(t).to(self.flat.full.device) for t in tensors])
        came, each = flat.new_empty(sum(map(sum, sizes))), [*map(sum, sizes)]
        splits = [sum(t.numel() for t in parts) for parts in sent]
        with trace.span("communication", "all-to-all updates"):
            dist.all_to_all_single(came, flat, each, splits, group=self.flat.group)
        return [list(part.split(size)) for part, size in zip(came.split(each), sizes, strict=True)]


def matrices(flat: Any, i: int, parameter: nn.Parameter, first: int) -> Iterator[Piece]:
    """The matrix that the i-th parameter of a flat buffer is, or each of a stack; its elements on this rank are those
    of ``parameter`` from ``first`` on."""
    shape = flat.shapes[i][-2:]
    for begin in range(flat.starts[i], flat.starts[i + 1], shape.numel()):
        ends = [flat.shard_size * rank for rank in range(flat.ranks + 1)]
        held = [max(0, min(b, begin + shape.numel()) - max(a, begin)) for a, b in pairwise(ends)]
        yield Piece(parameter, slice(first, first + held[flat.rank]), shape, held)
        first += held[flat.rank]
