"""The causes in a ledger, earliest first: a difference that follows from an earlier one is not listed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from course_lib.diagnose.forward import Forward
from course_lib.diagnose.ledger.fit import Index, at, block
from course_lib.diagnose.ledger.ledger import Ledger
from course_lib.diagnose.ledger.placement import Placement, compared, factor
from course_lib.diagnose.recording.record import AFTER, FLOWING, GRADIENT, OUTPUT, UNCLIPPED, WEIGHT, Item


@dataclass(frozen=True)
class Cause:
    """What went wrong first.

    Attributes:
        kind: of what is wrong: ``weight``, ``output``, ``flowing``, ``unclipped``, ``gradient``, ``after``.
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
        self.index: dict[str, dict[int, Index]] = {}  # which part of a parameter each rank has
        self.outputs = Forward(ledger, self.index)

    def causes(self) -> list[Cause]:
        if found := self.weights():
            return found
        for step in self.ledger.steps:
            if (wrong := self.outputs.wrong(step)) is not None:
                return [Cause(OUTPUT, wrong[0], (wrong[1],), wrong[2], wrong[3])]
            if found := self.backward(step) or self.after(step):
                return found
        return []

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

    def backward(self, step: int) -> list[Cause]:
        """Parameters whose gradient is wrong, those of the last module first."""
        order = {name: i for i, name in enumerate(self.ledger.names(OUTPUT, step))}
        found = self._gradients(GRADIENT, step, order)
        if not found:
            return []
        if unclipped := self._gradients(UNCLIPPED, step, order):
            found = unclipped
        if (flow := self._flow(step, found[0], order)) is not None:
            return [flow]
        first, *later = _joined(found)
        own = [c for c in later if c.verdict != "unlike" and self._arrives(step, _owner(c.names[0]))]
        return [first, *own]

    def _gradients(self, kind: str, step: int, order: dict[str, int]) -> list[Cause]:
        names = sorted(self.ledger.names(kind, step), key=lambda n: -order.get(_owner(n), -1))
        places = {n: place for n in names if (place := self.gradient(kind, step, n)) is not None}
        # Clipping scales all gradients by one number, which is wrong when one of them is: undo it, and look again.
        last = next((p for p in places.values() if p.verdict in ("replicated", "factor", "by rank")), None)
        if last is not None and last.factors and len({_factors(p) for p in places.values()}) > 1:
            again = {n: self.gradient(kind, step, n, last.factors) for n in places}
            places = {n: place for n, place in again.items() if place is not None}
        return [Cause(kind, p.verdict, (n,), p) for n, p in places.items() if p.verdict != "replicated"]

    def gradient(
        self, kind: str, step: int, name: str, scale: dict[int, float] | None = None
    ) -> Placement | None:
        """What the ranks' gradients of a parameter are, divided by ``scale``; ``None`` with nothing to judge."""
        whole = self.ledger.whole(kind, step, name)
        ran = self.ledger.values(OUTPUT, step, _owner(name) or "the model")
        held = {r: v[0] for r, v in self.ledger.values(kind, step, name).items() if not ran or r in ran}
        if whole is None:
            return None
        if not held:
            moves, gone = self._moved(step, name), not any(n == name for _, _, n in self.ledger.ranks)
            lost = kind == GRADIENT and (moves is None or not moves.any())
            return Placement("none") if lost and whole.any() and not gone else None
        if self._index(name, held) is None:
            place = self.ledger.placed(kind, step, name)
            if place and place.verdict in ("replicated", "shard"):
                self.index[name] = {r: calls[0] for r, calls in place.index.items()}
                return Placement("replicated", place.index)
        values = {r: item.value.double() / (scale or {}).get(r, 1.0) for r, item in held.items()}
        before = self.ledger.whole(kind, step - 1, name)
        return self._compare(kind, name, values, held, whole, before)

    def _index(self, name: str, held: dict[int, Item]) -> dict[int, Index] | None:
        """Which part each rank holds: what a DTensor says, or where the first values of the weight stand."""
        index = {}
        for rank, item in held.items():
            known = self.index.get(name, {}).get(rank)
            if item.offset is not None:
                index[rank] = block(item.offset, item.value.shape)
            elif known is not None and tuple(map(len, known)) == tuple(item.value.shape):
                index[rank] = known
            else:
                return None
        return index

    def _compare(
        self,
        kind: str,
        name: str,
        values: dict[int, Tensor],
        held: dict[int, Item],
        whole: Tensor,
        before: Tensor | None,
    ) -> Placement:
        tolerance, places = self.ledger.tolerance(kind), []
        if kind == AFTER:
            tolerance = max(1e-6 * float(whole.abs().max()), 8 * self.ledger.epsilon)
        known = self._index(name, held)
        for index in [known] if known else _layouts(values, whole):
            index = {r: index[r] for r in values if r in index}
            expected = {r: at(whole, i) for r, i in index.items()}
            mine = {r: values[r] for r in index}
            places.append(compared(mine, expected, index, whole, before, tolerance, self.ledger.cuts))
            if places[-1].verdict == "replicated":
                self.index.setdefault(name, index)
                return places[-1]
        return next((p for p in places if p.verdict != "unlike"), places[0])

    def after(self, step: int) -> list[Cause]:
        """Parameters that the optimizer moved elsewhere although their gradients are right."""
        found = []
        for name in self.ledger.names(AFTER, step + 1):
            moved = self._moved(step, name)
            held = {r: v[0] for r, v in self.ledger.values(AFTER, step + 1, name).items()}
            ran = self.ledger.values(OUTPUT, step, _owner(name) or "the model")
            held = {r: item for r, item in held.items() if r in ran}
            start = self.ledger.whole(AFTER if step else WEIGHT, step, name)
            index = self._index(name, held) if held else None
            if moved is None or start is None or index is None:
                continue
            values = {r: i.value.double() - at(start.reshape(moved.shape), index[r]) for r, i in held.items()}
            # Adam divides by the gradient's size: where that is rounding, so is the step
            gradient = self.ledger.whole(GRADIENT, step, name)
            if gradient is not None and gradient.shape == moved.shape:
                tiny = max(1e-6 * float(gradient.abs().max()), self.ledger.tolerance(GRADIENT))
                small = gradient.abs() <= tiny
                values = {r: v.masked_fill(at(small, index[r]), 0) for r, v in values.items()}
                moved = moved.masked_fill(small, 0)
            place = self._compare(AFTER, name, values, held, moved, None)
            if place.verdict == "unlike" and not moved.any():
                place = replace(place, verdict="thawed")
            if place.verdict != "replicated":
                found.append(Cause(AFTER, place.verdict, (name,), place))
        return _joined(found)

    def _moved(self, step: int, name: str) -> Tensor | None:
        """How far one device's step moved a parameter."""
        after = self.ledger.whole(AFTER, step + 1, name)
        start = self.ledger.whole(AFTER if step else WEIGHT, step, name)
        return None if after is None or start is None else after - start.reshape(after.shape)

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
                near = "" if name != next(reversed(order)) else "the loss"
                return Cause(FLOWING, "unlike", (name,), place, near)
        return None

    def _arrives(self, step: int, name: str) -> bool:
        """Whether the gradient of a module's output is right, up to one factor."""
        place = self._flowing(step, name)
        return place is None or place.verdict == "replicated"

    def _flowing(self, step: int, name: str) -> Placement | None:
        whole, output = self.ledger.whole(FLOWING, step, name), self.outputs.places.get((step, name))
        values = self.ledger.values(FLOWING, step, name)
        if whole is None or output is None or not values or not whole.any():
            return None
        factors: dict[int, list[float | None]] = {}
        for rank, calls in values.items():
            parts = [at(whole, i) for i in output.index.get(rank, ()) if len(i) == whole.ndim]
            for item in calls if all(p.any() for p in parts) else ():
                ks = [factor(item.value.double(), p, self.ledger.tolerance(FLOWING)) for p in parts]
                factors.setdefault(rank, []).append(next((k for k in ks if k is not None), None))
        every = [k for ks in factors.values() for k in ks]
        known = [k for k in every if k is not None]
        if len(known) == len(every):
            if not known or max(known) - min(known) <= 1e-6 * max(map(abs, known)):
                return Placement("replicated")
            return Placement(
                "by rank", factors={r: sum(k for k in ks if k) / len(ks) for r, ks in factors.items()}
            )
        place = self.ledger.placed(FLOWING, step, name)
        return place if place and place.verdict == "sum" else Placement("unlike")


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _factors(place: Placement) -> tuple:
    """By which numbers the values are wrong: the same on all ranks, or one for each."""
    rounded = {r: round(k, 5) for r, k in sorted(place.factors.items())}
    return (
        (place.verdict, *set(rounded.values()))
        if place.verdict == "factor"
        else (place.verdict, *rounded.items())
    )


def _joined(causes: list[Cause]) -> list[Cause]:
    """One cause of all with the same verdict, over the same axis and by the same factors."""
    groups: dict[tuple, list[Cause]] = {}
    for cause in causes:
        groups.setdefault((*_factors(cause.placement), cause.placement.axis), []).append(cause)
    joined = []
    for group in groups.values():
        ranks = tuple(sorted({r for c in group for r in c.placement.ranks}))
        names = tuple(c.names[0] for c in group)
        joined.append(replace(group[0], names=names, placement=replace(group[0].placement, ranks=ranks)))
    return joined


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
            inside = [o + n <= w for o, n, w in zip(offset, value.shape, whole.shape, strict=False)]
            if len(offset) == whole.ndim and all(inside):
                index[r] = block(tuple(offset), value.shape)
        found.append(index)
    return found
