"""The causes in a ledger, earliest first: a difference that follows from an earlier one is not listed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.diagnose.fit import Index, at, block
from course_lib.diagnose.ledger import Ledger
from course_lib.diagnose.placement import Placement, compared, factor
from course_lib.diagnose.record import AFTER, FLOWING, GRADIENT, OUTPUT, WEIGHT


@dataclass(frozen=True)
class Cause:
    """What went wrong first.

    Attributes:
        kind: of what is wrong: ``weight``, ``output``, ``flowing``, ``gradient``, ``after``.
        verdict: how, as in ``Placement``, or with its reason: ``bias``, ``mixes``, ``sum used``, ``weights``.
        names: of the parameters or the modules, in the order in which the step makes the values.
        near: another module that the sentence names.
    """

    kind: str
    verdict: str
    names: tuple[str, ...]
    placement: Placement
    near: str = ""


class Judge:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.outputs: dict[str, Placement] = {}
        self.index: dict[str, dict[int, Index]] = {}  # which part of a parameter each rank has

    def causes(self) -> list[Cause]:
        if found := self.weights():
            return found
        for step in self.ledger.steps:
            if (wrong := self.forward(step)) is not None:
                return [wrong]
            if found := self.backward(step):
                return found
        return self.after()

    def weights(self) -> list[Cause]:
        found = []
        for name in self.ledger.names(WEIGHT, 0):
            place = self.ledger.placed(WEIGHT, 0, name)
            if place is None:
                continue
            if not place.right or place.verdict == "sum":
                found.append(Cause(WEIGHT, place.verdict, (name,), place))
            elif place.unique:
                self.index[name] = {rank: calls[0] for rank, calls in place.index.items()}
        return _joined(found)

    def forward(self, step: int) -> Cause | None:
        """The first module whose output is no part of one device's, in the order in which modules end."""
        before: list[tuple[str, Placement]] = []
        for name in self.ledger.names(OUTPUT, step):
            place = self.ledger.placed(OUTPUT, step, name)
            if place is None:
                continue
            if not place.right:
                return self._explained(step, name, place, before)
            self.outputs[name] = place
            before.append((name, place))
        return None

    def _explained(
        self, step: int, name: str, place: Placement, before: list[tuple[str, Placement]]
    ) -> Cause:
        if place.verdict != "unlike":
            return Cause(OUTPUT, place.verdict, (name,), place)
        bias = self.ledger.whole(WEIGHT, 0, f"{name}.bias")
        for axis, groups in self.ledger.cuts if bias is not None else ():
            moved = self.ledger.placed(OUTPUT, step, name, (len(groups[0]) - 1) * bias)
            if moved and moved.right:
                return Cause(OUTPUT, "bias", (name,), Placement("bias", axis=axis))
        given = self.ledger.given(step, name)
        if given is not None and given.right and given.verdict != "sum":
            verdict = "mixes" if given.verdict == "shard" else "inside"
            return Cause(OUTPUT, verdict, (name,), given, before[-1][0] if before else "")
        added = []
        while before and before[-1][1].verdict == "sum":
            added.append(before.pop())
        if added:
            return Cause(OUTPUT, "sum used", (added[-1][0],), added[-1][1], name)
        return Cause(OUTPUT, "given", (name,), place, before[-1][0] if before else "")

    def backward(self, step: int) -> list[Cause]:
        """Parameters whose gradient is wrong, those of the last module first."""
        order = {name: i for i, name in enumerate(self.ledger.names(OUTPUT, step))}
        names = self.ledger.names(GRADIENT, step)
        names.sort(key=lambda n: -order.get(_owner(n), -1))
        found = []
        for name in names:
            place = self.gradient(step, name)
            if place is not None and place.verdict != "replicated":
                found.append(Cause(GRADIENT, place.verdict, (name,), place))
        if not found:
            return []
        if (flow := self._flow(step, found[0], order)) is not None:
            return [flow]
        first, *later = _joined(found)
        own = [c for c in later if c.verdict != "unlike" and self._arrives(step, _owner(c.names[0]))]
        return [first, *own]

    def gradient(self, step: int, name: str) -> Placement | None:
        """What the ranks' gradients of a parameter are; ``None`` where there is nothing to judge."""
        whole = self.ledger.whole(GRADIENT, step, name)
        ran = self.ledger.values(OUTPUT, step, _owner(name) or "the model")
        held = self.ledger.values(GRADIENT, step, name)
        values = {r: v[0].value.double() for r, v in held.items() if not ran or r in ran}
        if whole is None:
            return None
        if not values:
            moves = self._moved(name)
            lost = moves is None or not moves.any()
            return Placement("none") if lost and whole.any() and not self._elsewhere(name) else None
        if name not in self.index:
            place = self.ledger.placed(GRADIENT, step, name)
            if place and place.verdict in ("replicated", "shard"):
                self.index[name] = {r: calls[0] for r, calls in place.index.items()}
                return Placement("replicated", place.index)
        return self._compare(GRADIENT, name, values, whole, self.ledger.whole(GRADIENT, step - 1, name))

    def _compare(
        self, kind: str, name: str, values: dict[int, Tensor], whole: Tensor, before: Tensor | None
    ) -> Placement:
        tolerance, places = self.ledger.tolerance(kind), []
        if kind == AFTER:
            tolerance = max(1e-6 * float(whole.abs().max()), 8 * self.ledger.epsilon)
        for index in [self.index[name]] if name in self.index else _layouts(values, whole):
            index = {r: index[r] for r in values if r in index}
            expected = {r: at(whole, i) for r, i in index.items()}
            mine = {r: values[r] for r in index}
            places.append(compared(mine, expected, index, whole, before, tolerance, self.ledger.cuts))
            if places[-1].verdict == "replicated":
                self.index[name] = index
                return places[-1]
        return next((p for p in places if p.verdict != "unlike"), places[0])

    def after(self) -> list[Cause]:
        """Parameters that the optimizer moved elsewhere although their gradients are right."""
        found = []
        last = max((s for k, s, _ in self.ledger.one if k == AFTER), default=0)
        for name in self.ledger.names(AFTER, last):
            moved, weight = self._moved(name), self.ledger.whole(WEIGHT, 0, name)
            held = self.ledger.values(AFTER, last, name)
            ran = self.ledger.values(OUTPUT, 0, _owner(name) or "the model")
            if moved is None or weight is None or name not in self.index:
                continue
            index = self.index[name]
            values = {
                r: v[0].value.double() - at(weight, index[r])
                for r, v in held.items()
                if r in index and r in ran and v[0].value.shape == at(weight, index[r]).shape
            }
            # Adam divides by the gradient's size: where that is rounding, so is the step
            gradient = self.ledger.whole(GRADIENT, 0, name)
            if gradient is not None and gradient.shape == moved.shape:
                small = gradient.abs() <= 1e-6 * gradient.abs().max()
                values = {r: torch.where(at(small, index[r]), at(moved, index[r]), v) for r, v in values.items()}
            if values and (place := self._compare(AFTER, name, values, moved, None)).verdict != "replicated":
                found.append(Cause(AFTER, place.verdict, (name,), place))
        return _joined(found)

    def _moved(self, name: str) -> Tensor | None:
        """How far one device's step moved a parameter."""
        last = max((s for k, s, n in self.ledger.one if (k, n) == (AFTER, name)), default=0)
        after, weight = self.ledger.whole(AFTER, last, name), self.ledger.whole(WEIGHT, 0, name)
        if after is None or weight is None or after.numel() != weight.numel():
            return None
        return after.reshape(weight.shape) - weight

    def _elsewhere(self, name: str) -> bool:
        """No rank has the parameter under this name."""
        return not any(n == name for _, _, n in self.ledger.ranks)

    def _flow(self, step: int, first: Cause, order: dict[str, int]) -> Cause | None:
        """The gradient of an output that is wrong before the first parameter's is, if that explains it."""
        until = order.get(_owner(first.names[0]), -1)
        for name in reversed([n for n in order if order[n] >= until]):
            place = self._flowing(step, name)
            if place is None:
                continue
            if place.verdict == "by rank" and first.verdict == "unlike":
                return Cause(FLOWING, "weights", (name,), place)
            if place.verdict == "sum" and first.verdict in ("sum", "unlike"):
                return Cause(FLOWING, "sum", (name,), place)
            if place.verdict == "unlike" and first.verdict == "unlike":
                return Cause(FLOWING, "unlike", (name,), place)
        return None

    def _arrives(self, step: int, name: str) -> bool:
        """Whether the gradient of a module's output is right, up to one factor."""
        place = self._flowing(step, name)
        return place is None or place.verdict == "replicated"

    def _flowing(self, step: int, name: str) -> Placement | None:
        whole, output = self.ledger.whole(FLOWING, step, name), self.outputs.get(name)
        values = self.ledger.values(FLOWING, step, name)
        if whole is None or output is None or not values or not whole.any():
            return None
        tolerance, factors = self.ledger.tolerance(FLOWING), {}
        for rank, calls in values.items():
            for item in calls:
                parts = [at(whole, i) for i in output.index.get(rank, ()) if len(i) == whole.ndim]
                if any(not p.any() for p in parts):
                    continue
                k = next((k for p in parts if (k := factor(item.value.double(), p, tolerance)) is not None), None)
                factors.setdefault(rank, []).append(k)
        if not any(k is None for ks in factors.values() for k in ks):
            every = [k for ks in factors.values() for k in ks]
            if not every or max(every) - min(every) <= 1e-6 * max(map(abs, every)):
                return Placement("replicated")
            return Placement("by rank", factors={r: sum(ks) / len(ks) for r, ks in factors.items()})
        place = self.ledger.placed(FLOWING, step, name)
        return place if place and place.verdict == "sum" else Placement("unlike")


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _joined(causes: list[Cause]) -> list[Cause]:
    """One cause of all with the same verdict, over the same axis, by the same factors, on the same ranks."""
    groups: dict[tuple, list[Cause]] = {}
    for cause in causes:
        factors = tuple((r, round(k, 5)) for r, k in sorted(cause.placement.factors.items()))
        groups.setdefault((cause.verdict, cause.placement.axis, factors, cause.placement.ranks), []).append(cause)
    return [
        Cause(g[0].kind, g[0].verdict, tuple(c.names[0] for c in g), g[0].placement) for g in groups.values()
    ]


def _layouts(values: dict[int, Tensor], whole: Tensor) -> list[dict[int, Index]]:
    """Which part each rank may have, of a parameter whose first values tell nothing (all ones, all zeros)."""
    ranks, found = 1 + max(values), []
    for inner in (True, False):
        index = {}
        for r, value in values.items():
            offset = []
            for n, w in zip(value.shape, whole.shape, strict=True) if value.ndim == whole.ndim else ():
                parts = max(1, w // max(n, 1))
                offset.append(n * min(r % parts if inner else r * parts // ranks, parts - 1))
            if len(offset) == whole.ndim and all(o + n <= w for o, n, w in zip(offset, value.shape, whole.shape)):
                index[r] = block(tuple(offset), value.shape)
        found.append(index)
    return found
