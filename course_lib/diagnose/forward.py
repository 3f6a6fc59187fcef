"""The first module whose output is no part of one device's, and why."""

from __future__ import annotations

from torch import Tensor

from course_lib.diagnose.ledger.fit import Index
from course_lib.diagnose.ledger.ledger import Ledger
from course_lib.diagnose.ledger.placement import Placement, factor
from course_lib.diagnose.recording.record import OUTPUT, WEIGHT

Wrong = tuple[str, str, Placement, str]  # verdict, module, placement, a module near it


class Forward:
    """Judges outputs in the order in which modules end.

    Attributes:
        places: what each right output is, by step and module.
    """

    def __init__(self, ledger: Ledger, index: dict[str, dict[int, Index]]) -> None:
        self.ledger, self.index = ledger, index
        self.places: dict[tuple[int, str], Placement] = {}

    def wrong(self, step: int) -> Wrong | None:
        before: list[str] = []
        for name in self.ledger.names(OUTPUT, step):
            place = self.ledger.placed(OUTPUT, step, name)
            if place is None:
                continue
            if not place.right:
                return self._explained(step, name, place, before)
            self.places[step, name] = place
            before.append(name)
        return None

    def _explained(self, step: int, name: str, place: Placement, before: list[str]) -> Wrong:
        if place.verdict != "unlike":
            return place.verdict, name, place, ""
        inside = [n for n in before if n.startswith(f"{name}.")]
        given = self.ledger.given(step, name)
        added = []
        while before and self.places[step, before[-1]].verdict == "sum":
            added.append(before.pop())
        for bias in self._biases(step, name):
            if (found := self._beside(step, name, bias, bool(added and inside))) is not None:
                return found[0], name, found[1], ""
        right = given is not None and given.right and given.verdict != "sum"
        if added and (inside or not right):
            return "sum used", added[-1], self.places[step, added[-1]], name
        near = (inside or before or [""])[-1]
        if inside or (not right and near and given is not None):
            return "between" if inside else "given", name, self.places[step, near], near
        if given is None or not right or given.verdict == "replicated":
            return "inside", name, given or place, near
        return "order" if self._other_rows(name, given) else "mixes", name, given, near

    def _biases(self, step: int, name: str) -> list[Tensor]:
        whole = self.ledger.whole(OUTPUT, step, name)
        found = [n for n in self.ledger.names(WEIGHT, 0) if n.startswith(f"{name}.") and n.endswith("bias")]
        biases = [b for n in found if (b := self.ledger.whole(WEIGHT, 0, n)) is not None]
        return [b for b in biases if whole is not None and b.shape == whole.shape[-1:]]

    def _beside(self, step: int, name: str, bias: Tensor, inner_sum: bool) -> tuple[str, Placement] | None:
        """Whether the sum has the bias too often, or is right up to a factor but for its bias."""
        for axis, groups in self.ledger.cuts:
            for more in (len(groups[0]) - 1, len(groups[0])):
                moved = self.ledger.placed(OUTPUT, step, name, more * bias)
                # Addends of a sum inside, to which each rank adds its bias, are not yet summed: no fault of the bias
                if moved and moved.right and not (inner_sum and moved.verdict == "sum"):
                    return "bias", Placement("bias", axis=axis)
        whole, tolerance = self.ledger.whole(OUTPUT, step, name), self.ledger.tolerance(OUTPUT)
        values = {r: items[0].value.double() for r, items in self.ledger.values(OUTPUT, step, name).items()}
        if whole is None or any(v.shape != whole.shape for v in values.values()):
            return None
        factors = {r: factor(v - bias, whole - bias, tolerance) for r, v in values.items()}
        known = {r: k for r, k in factors.items() if k is not None}
        if len(known) == len(factors) and max(known.values()) - min(known.values()) <= 1e-6:
            return "factor", Placement("factor", factors=known)
        return None

    def _other_rows(self, name: str, given: Placement) -> bool:
        """Whether a linear layer's rows belong to another part of the input than the rank is given."""
        rows = self.index.get(f"{name}.weight", {})
        return any(
            len(i) == 2 and len(g[0][-1]) == len(i[1]) and not bool((g[0][-1] == i[1]).all())
            for r, i in rows.items()
            if (g := given.index.get(r))
        )
