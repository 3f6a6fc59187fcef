"""State that some ranks have saved, taken up by another number of ranks, through ``torch.distributed.checkpoint``.

A rank holds a part of each tensor. With ZeRO and FSDP the part is a run of elements of the flattened parameter. With
tensor parallelism it is rows or columns. With a pipeline one rank has the whole parameter, and the others have nothing.
Each part is a box in a tensor: it has a start and a length in each dimension. Each rank writes its boxes as they are.
To load, a rank finds the saved boxes that overlap its own, reads them, and copies what they have in common. Nothing is
gathered.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from course_lib.checkpoints.manifest import Save
from course_lib.checkpoints.saves import checked
from course_lib.checkpoints.tensors import load_tensors, save_tensors, saved_tensors


@dataclass(frozen=True)
class Piece:
    """A box of the tensor ``name``, which has the shape ``whole``.

    Attributes:
        tensor: the elements in the box; ``load_pieces`` writes into its memory, so it may be a view.
        start: where the box begins, one number for each dimension.
    """

    name: str
    tensor: Tensor
    start: tuple[int, ...]
    whole: tuple[int, ...]

    @property
    def key(self) -> str:
        """``"layer.weight@0,64/128,128"``. Ranks that hold the same box have the same key, and one rank writes it."""
        return f"{self.name}@{_text(self.start)}/{_text(self.whole)}"


def overlap(
    start: Sequence[int], size: Sequence[int], other_start: Sequence[int], other_size: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """What two boxes of one tensor have in common, as slices of the first and of the second; None: nothing."""
    ours, theirs = [], []
    for a, n, b, m in zip(start, size, other_start, other_size, strict=True):
        low, high = max(a, b), min(a + n, b + m)
        if low >= high:
            return None
        ours.append(slice(low - a, high - a))
        theirs.append(slice(low - b, high - b))
    return tuple(ours), tuple(theirs)


def reshard_flat(shards: Sequence[Tensor], numel: int, ranks: int) -> list[Tensor]:
    """Equal, padded shards of ``numel`` elements to those of another number of ranks.

    ``shards`` are (ceil(numel / p),) each; the result has ``ranks`` tensors of (ceil(numel / ranks),). Where there are
    fewer elements than places, the end is padded with zeros.
    """
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; at least 1 is needed")
    size, old = -(-numel // ranks), -(-numel // len(shards))
    if any(len(shard) != old for shard in shards):
        raise ValueError(
            f"{len(shards)} shards of {numel} elements have {old} each, not {[len(shard) for shard in shards]}"
        )
    new = []
    for rank in range(ranks):
        own = shards[0].new_zeros(size)
        for other, shard in enumerate(shards):
            length = min(old, max(0, numel - other * old))  # without its padding
            if common := overlap((rank * size,), (size,), (other * old,), (length,)):
                own[common[0]] = shard[common[1]]
        new.append(own)
    return new


# ---- the pieces of a model and its optimizer ----


def flat_pieces(flats: Iterable[Any], optimizer: Optimizer | None = None) -> list[Piece]:
    """Of ZeRO (``zero.flats``) or FSDP (``fsdp.flats``): this rank's run of elements of each parameter and its states.

    After loading, ZeRO must gather its parameters (``zero.gather_parameters()``). States must be there: see
    ``make_optimizer_states``.
    """
    pieces = []
    for flat in flats:
        states = flat.states(optimizer) if optimizer is not None else [{}] * len(flat.names)
        for i, name in enumerate(flat.names):
            low, high = flat.extent(i)
            if low == high:
                continue  # all elements are on other ranks
            start = low + flat.rank * flat.shard_size - flat.starts[i]
            whole = flat.starts[i + 1] - flat.starts[i]
            pieces.append(Piece(f"model/{name}", flat.shard.detach()[low:high], (start,), (whole,)))
            for key, value in states[i].items():
                if isinstance(value, Tensor) and value.dim():
                    pieces.append(Piece(f"{key}/{name}", value.flatten(), (start,), (whole,)))
                elif isinstance(value, Tensor):
                    pieces.append(Piece(f"{key}/{name}", value, (), ()))
    return pieces


def parameter_pieces(
    parameters: Iterable[tuple[str, Tensor]],
    optimizer: Optimizer | None = None,
    cuts: Mapping[str, Any] | None = None,
) -> list[Piece]:
    """Of tensor or pipeline parallelism: what this rank holds of each parameter, and of its states.

    Args:
        parameters: names in the whole model, and this rank's parameters.
        cuts: for the name of each parameter that is cut, its ``dim``, ``start`` and ``whole``: tensor parallelism's
            ``shards_of(model)``. Parameters that are not in it are whole.
    """
    pieces = []
    for name, parameter in parameters:
        start, whole = [0] * parameter.dim(), list(parameter.shape)
        if cut := (cuts or {}).get(name):
            start[cut.dim], whole[cut.dim] = cut.start, cut.whole
        states = optimizer.state.get(parameter, {}) if optimizer is not None else {}
        for key, value in {"model": parameter.detach(), **states}.items():
            if isinstance(value, Tensor):
                box = (tuple(start), tuple(whole)) if value.dim() else ((), ())
                pieces.append(Piece(f"{key}/{name}", value, *box))
    return pieces


# ---- to a folder and back ----


def save_pieces(folder: str | os.PathLike, pieces: Iterable[Piece], **about: Any) -> None:
    """Write this rank's pieces. All ranks call it, and see the same folder.

    Args:
        about: what else is to be found again, such as ``step=100``; the same on all ranks.
    """
    save_tensors(folder, {piece.key: piece.tensor.contiguous() for piece in pieces}, about)


@torch.no_grad()
def load_pieces(folder: str | os.PathLike, pieces: Iterable[Piece]) -> dict[str, Any]:
    """Fill the pieces' tensors from what any number of ranks has saved; returns ``about``. All ranks call it.

    Raises:
        ValueError: the folder holds no whole checkpoint, or a tensor is not in it, or only a part of it.
    """
    save = checked(folder, together=dist.is_initialized())
    pieces, saved = list(pieces), _saved_boxes(save)
    wanted = []  # piece, key, slices of the piece, slices of what is read
    for piece in pieces:
        found = 0
        for key, (start, size, whole) in saved.get(piece.name, {}).items():
            if whole != piece.whole:
                raise ValueError(f"{piece.name} has the shape {whole} in {folder}, and {piece.whole} here")
            if common := overlap(piece.start, piece.tensor.shape, start, size):
                wanted.append((piece, key, *common))
                found += piece.tensor[common[0]].numel()
            elif not whole:
                wanted.append((piece, key, (), ()))
                found += 1
        if found != piece.tensor.numel():
            raise ValueError(
                f"{folder} has {found} of the {piece.tensor.numel()} elements of {piece.name} that this rank needs"
            )
    state = load_tensors(save, {key for _, key, _, _ in wanted})
    for piece, key, ours, theirs in wanted:
        piece.tensor[ours] = state[key][theirs]
    return save.about


def _saved_boxes(save: Save) -> dict[str, dict[str, tuple]]:
    """Name -> key -> start, size and whole shape of each box that was saved."""
    found: dict[str, dict[str, tuple]] = {}
    for key, entry in saved_tensors(save).items():
        name, _, box = key.rpartition("@")
        start, whole = (tuple(int(n) for n in part.split(",") if n) for part in box.split("/"))
        found.setdefault(name, {})[key] = (start, tuple(entry.size), whole)
    return found


def _text(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
