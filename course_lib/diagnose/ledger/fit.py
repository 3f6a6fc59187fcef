"""Which part of one device's tensor a rank's tensor is, found by its values."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

Index = tuple[Tensor, ...]  # for each dimension, which positions of one device's tensor


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return a.shape == b.shape and (not a.numel() or bool((a - b).abs().max() <= tolerance))


def at(whole: Tensor, index: Index) -> Tensor:
    """The part of ``whole`` at ``index``."""
    for dim, positions in enumerate(index):
        whole = whole.index_select(dim, positions)
    return whole


def block(offset: tuple[int, ...], shape: torch.Size) -> Index:
    return tuple(torch.arange(o, o + n) for o, n in zip(offset, shape, strict=True))


def is_whole(index: Index, shape: torch.Size) -> bool:
    return all(torch.equal(i, torch.arange(n)) for i, n in zip(index, shape, strict=True))


def fit(part: Tensor, whole: Tensor, tolerance: float) -> tuple[Index, bool] | None:
    """Where in ``whole`` the values of ``part`` stand, and whether they stand nowhere else.

    A part is cut along one dimension in any order (zigzag, heads of a packed matrix), or along two, one of them
    in equal blocks. A part with the whole's shape may hold it in another order.
    """
    if part.ndim != whole.ndim or any(p > w for p, w in zip(part.shape, whole.shape, strict=True)):
        return None
    cut = [d for d in range(whole.ndim) if part.shape[d] != whole.shape[d]]
    everything = block((0,) * whole.ndim, whole.shape)
    if not cut and close(part, whole, tolerance):
        return everything, True
    if len(cut) < 2:
        for dim in cut or range(whole.ndim):
            if (found := _along(dim, part, whole, tolerance)) is not None:
                return (*everything[:dim], found[0], *everything[dim + 1 :]), found[1]
    if len(cut) == 2:
        for a, b in itertools.permutations(cut):
            n = part.shape[a]
            for start in range(0, whole.shape[a] - n + 1, n):
                if (found := _along(b, part, whole.narrow(a, start, n), tolerance)) is not None:
                    index = list(everything)
                    index[a], index[b] = torch.arange(start, start + n), found[0]
                    return tuple(index), found[1]
    return None


def _along(dim: int, part: Tensor, whole: Tensor, tolerance: float) -> tuple[Tensor, bool] | None:
    """Positions of ``whole`` along ``dim`` that hold ``part``, and whether no others do."""
    rows, wanted = (t.movedim(dim, 0).reshape(t.shape[dim], -1) for t in (whole, part))
    if not len(wanted) or not rows.shape[1]:
        return None
    # One number for each row: rows that differ have other sums under weights without a pattern.
    weights = torch.cos(torch.arange(rows.shape[1], dtype=rows.dtype) ** 2 + 1)
    far = (wanted @ weights)[:, None] - (rows @ weights)[None]
    near = far.abs() <= tolerance * (1 + rows.shape[1])
    starts = [s for s in near[0].nonzero().flatten().tolist() if s + len(wanted) <= len(rows)]
    blocks = [s for s in starts if close(wanted, rows[s : s + len(wanted)], tolerance)]
    if blocks:
        return torch.arange(blocks[0], blocks[0] + len(wanted)), len(blocks) == 1
    positions = far.abs().argmin(1)
    if close(wanted, rows[positions], tolerance):
        return positions, bool((near.sum(1) == 1).all())
    return None


def holders(shape: torch.Size, indices: list[Index]) -> np.ndarray:
    """How often each element stands in one of the parts."""
    counts = np.zeros(tuple(shape), dtype=np.int64)
    for index in indices:
        counts[np.ix_(*(i.numpy() for i in index))] += 1
    return counts
