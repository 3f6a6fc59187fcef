"""A measured step beside the predicted one: what takes longer, by how much, and which rank is late, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.inputs.plan import Plan
from simulator.ledgers.timeline import Span, Timeline
from simulator.predict.step import StepCost
from simulator.trace.measured import Measured

# The parts of a predicted step that wait for messages along an axis. All others but the bubble's are computing.
ALONG = {
    "tp": ("tensor_parallel",),
    "cp": ("context_parallel",),
    "ep": ("expert_parallel",),
    "pp": ("pipeline", "bubble"),
    "dp": ("data_parallel",),
}
ELSEWHERE = {"optimizer", "offload", *(part for parts in ALONG.values() for part in parts)}
WORTH = 0.05  # of the step: what differs by less is not told
OFTEN = 0.75  # of its collectives: a rank that comes last to more of them is late


@dataclass(frozen=True)
class Row:
    """Seconds of a step; ``predicted`` is None where there is no prediction."""

    name: str
    measured: float
    predicted: float | None


def plan_axes(plan: Plan) -> dict[str, int]:
    """The mesh of a plan, outermost axis first."""
    return {"pp": plan.pp, "dp": plan.dp, "cp": plan.cp, "tp": plan.tp}


def rows(measured: Measured, cost: StepCost | None) -> list[Row]:
    """What a step is spent on: the mean of the ranks, and what is predicted of the slowest."""
    parts = None if cost is None else cost.parts
    updating = measured.mean("updating")
    computing = None if parts is None else sum(s for name, s in parts.items() if name not in ELSEWHERE)
    update = None if parts is None else parts["optimizer"]
    if not updating and computing is not None and update is not None:  # the trace does not tell them apart
        computing, update = computing + update, 0.0
    found = [Row("computing", measured.mean("computing") - updating, computing)]
    found.append(Row("optimizer", updating, update))
    for axis in dict.fromkeys([*ALONG, *measured.axes]):
        along = None if parts is None else sum(parts[part] for part in ALONG.get(axis, ()))
        found.append(Row(f"exposed, {axis}", measured.mean("exposed", axis), along))
    found.append(Row("copies", measured.mean("copying"), None if parts is None else parts["offload"]))
    found.append(Row("idle", measured.mean("idle"), None if parts is None else 0.0))
    return [row for row in found if row.measured or row.predicted]


def laid_over(predicted: Timeline, plan: Plan, ranks: Sequence[int]) -> Timeline:
    """The predicted timeline of pipeline ranks, for each rank that was measured."""
    together = plan.ranks // plan.pp
    return Timeline(
        Span(rank, *span[1:])
        for rank in ranks
        if rank < plan.ranks
        for span in predicted.of(rank // together)
    )


def sentences(measured: Measured, cost: StepCost | None) -> list[str]:
    """What the traces say, the most important first."""
    count, seconds = len(measured.ranks), measured.seconds
    first = f"A step takes {in_words(seconds)} ({_times(count, 'rank')}, {_times(measured.steps, 'step')})"
    if cost is not None:
        first += f", {seconds / cost.seconds:.3g} times the {in_words(cost.seconds)} that are predicted"
    found = [first]
    differing = [row for row in rows(measured, cost) if row.predicted is not None]
    differing.sort(key=lambda row: -abs(row.measured - (row.predicted or 0.0)))
    for row in differing:
        more = row.measured - (row.predicted or 0.0)
        if abs(more) >= WORTH * seconds:
            word = "more" if more > 0 else "less"
            said = f"{in_words(row.measured)} instead of {in_words(row.predicted or 0.0)}"
            found.append(f"{_subject(row.name)} {in_words(abs(more))} {word} than predicted: {said}")
    found += [_exposed(measured, axis) for axis in measured.axes]
    found += _late(measured)
    if cost is None and (idle := measured.mean("idle")) >= WORTH * seconds:
        found.append(
            f"In {in_words(idle)} a rank neither computes nor waits for a message: Python, data, launches"
        )
    return [sentence + "." for sentence in found]


def _subject(name: str) -> str:
    if name.startswith("exposed, "):
        return f"Communication along {name.removeprefix('exposed, ')} that nothing hides takes"
    if name == "idle":
        return "Doing nothing, neither computing nor waiting for a message, takes"
    return {"computing": "Computing takes", "optimizer": "The optimizer takes"}.get(name, "Copies take")


def _exposed(measured: Measured, axis: str) -> str:
    exposed, late = measured.mean("exposed", axis), measured.mean("late", axis)
    most = max(measured.ranks, key=lambda rank: rank.exposed.get(axis, 0.0))
    calls = _times(round(measured.mean("calls", axis)), "collective")
    text = f"{axis}: {calls} a step, {in_words(exposed)} of them exposed"
    if len(measured.ranks) > 1 and exposed:
        text += f", most on rank {most.rank} ({in_words(most.exposed[axis])})"
    if late >= WORTH * exposed > 0:
        text += f"; in {in_words(late)} of it some rank of the group had not come yet"
    return text


def _late(measured: Measured) -> list[str]:
    """Ranks that come last most of the time, and for which the others wait."""
    found = []
    for axis in measured.axes:
        for rank in measured.ranks:
            times, lost = rank.blamed.get(axis, (0.0, 0.0))
            if times > OFTEN * rank.calls[axis] and lost >= WORTH * measured.seconds:
                found.append(
                    f"Rank {rank.rank} is late: it is the last to come to {times:.0f} of its {rank.calls[axis]:.0f} "
                    f"{axis} collectives, and the others together wait {in_words(lost)} a step for it"
                )
    return found


def in_words(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if float(f"{seconds * factor:.3g}") >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _times(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
