"""Memory over time: what a schedule keeps alive on each rank, from action to action.

Static formulas count microbatches in flight; a replay counts the bytes of each, which may differ from stage to
stage, and finds the moment and the action of the peak. It works for every schedule, predicted or measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from simulator.execution import Execution
from simulator.memory import MemoryBreakdown


class Peak(NamedTuple):
    """The most bytes alive at once, from when on, and what was being done."""

    bytes: float
    time: float
    action: str


@dataclass(frozen=True)
class MemoryHistory:
    """The bytes alive on one rank over time, by category.

    Args:
        rank: whose memory it is.
        times: when something changed; the first is the beginning.
        held: for each of these times, what is alive from then on.
        actions: for each of these times, the action that changed it (``""`` at the beginning).
        end: when the last entry of ``held`` ends.
    """

    rank: int
    times: tuple[float, ...]
    held: tuple[MemoryBreakdown, ...]
    actions: tuple[str, ...]
    end: float

    @property
    def peak(self) -> Peak:
        """The highest total; the first time, if it is reached more than once."""
        at = max(range(len(self.held)), key=lambda i: self.held[i].total)
        return Peak(self.held[at].total, self.times[at], self.actions[at])

    def at(self, time: float) -> MemoryBreakdown:
        """What was alive at that time."""
        before = [held for start, held in zip(self.times, self.held, strict=True) if start <= time]
        return before[-1] if before else self.held[0]


def replay(
    execution: Execution,
    saved: float | Sequence[float],
    kept: float | Sequence[float] | None = None,
    states: Sequence[MemoryBreakdown] | None = None,
) -> list[MemoryHistory]:
    """Bytes alive on every rank while a schedule runs.

    Args:
        execution: a simulated schedule.
        saved: bytes that the forward of one microbatch saves for its backward: one number, or one a stage. They
            are there from the start of F.
        kept: of these, the bytes that the weights' backward needs: they stay from the end of B to the end of W
            (M_W of arXiv:2401.10241, table 1). One number, or one a stage; None: all of them.
        states: for every rank, what is there all the time: parameters, gradients, optimizer states, buffers.

    Returns:
        One history a rank.
    """
    schedule = execution.schedule
    saved = _by_stage("saved", saved, schedule.stages)
    kept = saved if kept is None else _by_stage("kept", kept, schedule.stages)
    if any(k > s for k, s in zip(kept, saved, strict=True)):
        raise ValueError(f"kept bytes are part of the saved ones, so {max(kept)} is too many")
    states = [MemoryBreakdown()] * schedule.ranks if states is None else states
    if len(states) != schedule.ranks:
        raise ValueError(f"states must be one for each of {schedule.ranks} ranks, not {len(states)}")

    histories = []
    for rank, actions in enumerate(schedule.actions):
        alive = 0.0
        steps = [(execution.start, alive, "")]
        for action, start, end in zip(actions, execution.starts[rank], execution.ends[rank], strict=True):
            kind, stage, _ = action
            allocated = saved[stage] if kind == "F" else 0
            freed = {"F": 0, "B": saved[stage] - kept[stage], "W": kept[stage], "BW": saved[stage]}[kind]
            for time, change in ((start, allocated), (end, -freed)):
                if change:
                    alive += change
                    steps.append((time, alive, schedule.span_name(action)))
        times, totals, names = zip(*steps, strict=True)
        base = states[rank].activations
        held = tuple(replace(states[rank], activations=base + total) for total in totals)
        histories.append(MemoryHistory(rank, times, held, names, execution.end))
    return histories


def _by_stage(name: str, value: float | Sequence[float], stages: int) -> Sequence[float]:
    values = value if hasattr(value, "__len__") else [value] * stages
    if len(values) != stages or min(values) < 0:
        raise ValueError(
            f"{name} must be one number of bytes, or one for each of {stages} stages, not {value}"
        )
    return values
