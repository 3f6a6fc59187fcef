"""What was kept, by kind, step and name: one device's values and each rank's, and how far rounding may part them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from course_lib.diagnose.ledger.placement import Placement, axes, placed
from course_lib.diagnose.recording.record import OUTPUT, WEIGHT, Item

# A sum in another order moves a value by a few units in the last place for each operation before it, times how much
# the operation cancels. A fault moves it by a part of its size: in float64 there are ten orders of magnitude between.
UNITS, MOST = 4096, 0.05


class Ledger:
    """The items of one device and of the ranks.

    Raises:
        ValueError: no weight of one device has the name of one on the ranks.
    """

    def __init__(self, one: list[Item], ranks: list[list[Item]], mesh: Mapping[str, int]) -> None:
        self.cuts = list(axes(len(ranks), mesh))
        self.one: dict[tuple[str, int, str], list[Item]] = {}
        self.ranks: dict[tuple[str, int, str], dict[int, list[Item]]] = {}
        for item in one:
            self.one.setdefault((item.kind, item.step, item.name), []).append(item)
        for rank, items in enumerate(ranks):
            for item in items:
                by_rank = self.ranks.setdefault((item.kind, item.step, item.name), {})
                by_rank.setdefault(rank, []).append(item)
        self.steps = sorted({item.step for item in one if item.kind == OUTPUT})
        self._bound = self._rounding([*one, *(item for items in ranks for item in items)])
        weights = self.names(WEIGHT, 0)
        if not any((WEIGHT, 0, name) in self.ranks for name in weights):
            there = sorted({name for kind, _, name in self.ranks if kind == WEIGHT})
            raise ValueError(
                "the modules that ran on one device and on the ranks share no name of a parameter: "
                f"{weights[:3]} and {there[:3]}; both models must name their modules alike"
            )

    def _rounding(self, items: list[Item]) -> dict[str, float]:
        depth = sum(len(calls) for (kind, _, _), calls in self.one.items() if kind == OUTPUT)
        epsilon = max(torch.finfo(i.value.dtype).eps for i in items if i.value.is_floating_point())
        scale: dict[str, float] = {}
        for (kind, _, _), calls in self.one.items():
            largest = max((float(i.value.abs().max()) for i in calls if i.value.numel()), default=0.0)
            scale[kind] = max(scale.get(kind, 0.0), largest)
        self.epsilon = epsilon
        return {kind: min(UNITS * epsilon * (1 + depth), MOST) * most for kind, most in scale.items()}

    def tolerance(self, kind: str) -> float:
        return self._bound.get(kind, 0.0)

    def names(self, kind: str, step: int) -> list[str]:
        """In the order in which one device made them."""
        return [name for k, s, name in self.one if (k, s) == (kind, step)]

    def values(self, kind: str, step: int, name: str) -> dict[int, list[Item]]:
        return self.ranks.get((kind, step, name), {})

    def whole(self, kind: str, step: int, name: str) -> Tensor | None:
        """One device's value; of several calls, the rows of all. Flat where the ranks hold flat parts."""
        calls = [item.value for item in self.one.get((kind, step, name), [])]
        if not calls:
            return None
        value = _together(calls)
        parts = [i.value for items in self.values(kind, step, name).values() for i in items]
        flat = bool(parts) and value.ndim > 1 and all(p.ndim == 1 for p in parts)
        return value.flatten() if flat else value

    def placed(self, kind: str, step: int, name: str, moved: Tensor | float = 0.0) -> Placement | None:
        """What the ranks' values are of one device's plus ``moved``; ``None`` where one of them has none."""
        whole, values = self.whole(kind, step, name), self.values(kind, step, name)
        if whole is None or not values:
            return None
        return placed(values, whole + moved, self.tolerance(kind), self.cuts)

    def given(self, step: int, name: str) -> Placement | None:
        """What the ranks give to a module."""
        calls = [i.given for i in self.one[OUTPUT, step, name] if i.given is not None]
        values = {
            r: [Item(OUTPUT, name, step, i.given) for i in items if i.given is not None]
            for r, items in self.values(OUTPUT, step, name).items()
        }
        if not calls or not all(values.values()) or not calls[0].numel():
            return None
        whole = _together(calls)
        tolerance = max(self.tolerance(OUTPUT), 1e-12 * float(whole.abs().max()))
        return placed(values, whole, tolerance, self.cuts)


def _together(calls: list[Tensor]) -> Tensor:
    """One call's value, or the rows of several of one shape."""
    joined = len(calls) > 1 and len({c.shape[1:] for c in calls}) == 1
    return (torch.cat(calls) if joined else calls[0]).double()
