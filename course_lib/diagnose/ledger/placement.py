"""The ledger of placement: what the ranks' values of one name are, beside one device's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from course_lib.diagnose.ledger.fit import Index, at, block, close, fit, holders, is_whole
from course_lib.diagnose.recording.record import Item


@dataclass(frozen=True)
class Placement:
    """What the ranks' values of one name are.

    Attributes:
        verdict: ``replicated``, ``shard``, ``sum`` (the values of an axis' ranks add up), or what is wrong:
            ``missing`` and ``repeated`` (parts of one device's value are on no rank, or on more ranks than others),
            ``factor``, ``zero``, ``unlike`` …
        index: where each rank's values stand in one device's, call by call.
        axis: over whose ranks they add up.
        factors: how many times one device's value each rank has.
    """

    verdict: str
    index: dict[int, list[Index]] = field(default_factory=dict)
    axis: str = ""
    factors: dict[int, float] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()  # those that are wrong
    unique: bool = True
    dims: tuple[int, ...] = ()  # along which the values are cut

    @property
    def right(self) -> bool:
        return self.verdict in ("replicated", "shard", "sum")


def axes(ranks: int, mesh: Mapping[str, int]) -> Iterator[tuple[str, list[list[int]]]]:
    """Every way to cut ``ranks`` into equal groups as a mesh does: its name, and the groups."""
    named, after = {}, ranks
    for name, size in mesh.items():
        after //= size
        named[after, size] = f"axis {name}"
    for size in (s for s in range(2, ranks + 1) if not ranks % s):
        for stride in (s for s in range(1, ranks // size + 1) if not ranks // size % s):
            groups: dict[tuple[int, int], list[int]] = {}
            for rank in range(ranks):
                groups.setdefault((rank // (stride * size), rank % stride), []).append(rank)
            cut = list(groups.values())
            shown = "all ranks" if len(cut) == 1 else "ranks " + ", ".join(_joined(g) for g in cut)
            yield named.get((stride, size), shown), cut


def _joined(ranks: list[int]) -> str:
    return "+".join(map(str, ranks))


def placed(
    values: dict[int, list[Item]], whole: Tensor, tolerance: float, cuts: list[tuple[str, list[list[int]]]]
) -> Placement:
    """What the ranks' ``values`` of a weight, an output or a gradient are, by their values alone."""
    found = {rank: [_find(item, whole, tolerance) for item in items] for rank, items in values.items()}
    if all(f is not None for calls in found.values() for f in calls):
        return _covered({r: [f for f in calls if f] for r, calls in found.items()}, whole)
    for axis, groups in cuts:
        if (index := _sums(values, whole, tolerance, groups)) is not None:
            return Placement("sum", index, axis)
    wrong = tuple(rank for rank, calls in found.items() if None in calls)
    if all(not item.value.any() for rank in wrong for item in values[rank]) and whole.any():
        return Placement("zero", ranks=wrong)
    same = all(item.value.shape == whole.shape for items in values.values() for item in items)
    factors = {r: factor(v[0].value.double(), whole, tolerance) for r, v in values.items()} if same else {}
    known = {r: k for r, k in factors.items() if k}
    if known and len(known) == len(values) and max(known.values()) - min(known.values()) <= 1e-6:
        return Placement("factor", factors=known, ranks=wrong)
    return Placement("unlike", ranks=wrong)


def _find(item: Item, whole: Tensor, tolerance: float) -> tuple[Index, bool] | None:
    if item.partial:
        return None
    if item.offset is not None and len(item.offset) == whole.ndim:
        index = block(item.offset, item.value.shape)
        inside = all(o + n <= w for o, n, w in zip(item.offset, item.value.shape, whole.shape, strict=True))
        if inside and close(item.value.double(), at(whole, index), tolerance):
            return index, True
        # else a DTensor on some axes of a mesh: on the others it is a part, too
    return fit(item.value.double(), whole, tolerance)


def _sums(
    values: dict[int, list[Item]], whole: Tensor, tolerance: float, groups: list[list[int]]
) -> dict[int, list[Index]] | None:
    """Where the sums of each group's values stand, call by call; ``None`` where one stands nowhere."""
    index: dict[int, list[Index]] = {}
    for group in groups:
        if not all(rank in values for rank in group):
            return None
        for calls in zip(*(values[rank] for rank in group), strict=False):
            if len({item.value.shape for item in calls}) > 1:
                return None
            added = torch.stack([item.value.double() for item in calls]).sum(0)
            if (found := fit(added, whole, tolerance)) is None:
                return None
            for rank in group:
                index.setdefault(rank, []).append(found[0])
    return index


def _covered(found: dict[int, list[tuple[Index, bool]]], whole: Tensor) -> Placement:
    """Parts that stand in one device's value: are they all of it, each as often as the others?"""
    index = {rank: [f[0] for f in calls] for rank, calls in found.items()}
    unique = all(f[1] for calls in found.values() for f in calls)
    every = [i for calls in index.values() for i in calls]
    dims = tuple(d for d in range(whole.ndim) if any(len(i[d]) < whole.shape[d] for i in every))
    if all(is_whole(i, whole.shape) for i in every):
        return Placement("replicated", index)
    if not dims and len(every) == len(index):
        wrong = tuple(r for r, calls in index.items() if not is_whole(calls[0], whole.shape))
        return Placement("permuted", index, ranks=wrong)
    counts = holders(whole.shape, every)
    verdict = (
        "shard" if not unique or counts.min() == counts.max() else "repeated" if counts.min() else "missing"
    )
    return Placement(verdict, index, unique=unique, dims=dims)


def factor(value: Tensor, whole: Tensor, tolerance: float) -> float | None:
    """How many times ``whole`` the value is; ``None`` where it is no multiple of it."""
    if value.shape != whole.shape or not whole.any():
        return None
    k = float((value * whole).sum() / (whole * whole).sum())
    return k if close(value, k * whole, tolerance * max(1.0, abs(k))) else None


def compared(
    values: dict[int, Tensor],
    expected: dict[int, Tensor],
    index: dict[int, Index],
    whole: Tensor,
    before: Tensor | None,
    tolerance: float,
    cuts: list[tuple[str, list[list[int]]]],
) -> Placement:
    """What the ranks' gradients (or changes) are, where each is ``expected`` to be its part of ``whole``.

    Args:
        index: which part each rank has.
        before: one device's gradient of the step before.
    """
    wrong = tuple(r for r, v in values.items() if not close(v, expected[r], tolerance))
    if not wrong:
        return Placement("replicated", {r: [i] for r, i in index.items()})
    factors = {r: k for r, v in values.items() if (k := factor(v, expected[r], tolerance)) is not None}
    every = len(factors) == sum(bool(expected[r].any()) for r in values) == len(values)
    alike = every and max(factors.values()) - min(factors.values()) <= 1e-6
    if alike and abs(k := factors[wrong[0]]) > 1e-9:
        return Placement("factor", factors=factors, ranks=wrong)
    if all(close(values[r], torch.zeros_like(values[r]), tolerance) for r in wrong):
        return Placement("zero", ranks=wrong)
    for axis, groups in cuts:
        for times, verdict in ((1, "sum"), (len(groups[0]), "average")):
            if _add_up(values, expected, groups, times, tolerance * times):
                return Placement(verdict, axis=axis, ranks=wrong)
    if every:
        return Placement("by rank", factors=factors, ranks=wrong)
    others = {r: [i for q, i in index.items() if q != r] for r in wrong}
    if all(any(close(values[r], at(whole, i), tolerance) for i in others[r]) for r in wrong):
        return Placement("another rank's", ranks=wrong)
    if before is not None:
        if all(close(values[r], at(before, index[r]), tolerance) for r in wrong):
            return Placement("stale", ranks=wrong)
        if all(close(values[r], expected[r] + at(before, index[r]), tolerance) for r in wrong):
            return Placement("kept", ranks=wrong)
    if all(fit(values[r], whole, tolerance) for r in wrong):
        return Placement("permuted", ranks=wrong)
    return Placement("unlike", ranks=wrong)


def _add_up(
    values: dict[int, Tensor],
    expected: dict[int, Tensor],
    groups: list[list[int]],
    times: int,
    tolerance: float,
) -> bool:
    """Whether in each group the values, of one shape, add up to ``times`` what is expected of all its ranks."""
    for group in groups:
        if not all(r in values and values[r].shape == values[group[0]].shape for r in group):
            return False
        added = torch.stack([values[r] for r in group]).sum(0)
        if not all(close(added, times * expected[r], tolerance) for r in group):
            return False
    return True
