"""Memory over time: what a schedule keeps alive on each rank, from action to action.

Static formulas count microbatches in flight; a replay counts the bytes of each, which may differ from stage to
stage, and finds the moment and the action of the peak. It works for every schedule, predicted or measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from simulator.inputs.checks import amounts, not_negative
from simulator.ledgers.memory import MemoryBreakdown, MemoryHistory
from simulator.pipeline.actions import Action, Schedule
from simulator.pipeline.execution import Execution


def replay(
    execution: Execution,
    saved: float | Sequence[float],
    kept: float | Sequence[float] | None = None,
    states: Sequence[MemoryBreakdown] | None = None,
    recomputed: float | Sequence[float] = 0,
) -> list[MemoryHistory]:
    """Bytes alive on every rank while a schedule runs.

    Args:
        execution: a simulated schedule.
        saved: bytes that the forward of one microbatch saves for its backward: one number, or one a stage. They
            are there from the start of F.
        kept: of these, the bytes that the weights' backward needs: they stay from the end of B to the end of W
            (M_W of arXiv:2401.10241, table 1). One number, or one a stage; None: all of them.
        states: for every rank, the bytes that it holds all the time: parameters, gradients, optimizer states, buffers.
        recomputed: bytes that the backward of one microbatch computes again: they are there from its start, and of
            them and the saved ones together the ``kept`` are left. One number, or one a stage.

    Returns:
        One history a rank.
    """
    schedule = execution.schedule
    saved = _by_stage("saved", saved, schedule.stages)
    recomputed = _by_stage("recomputed", recomputed, schedule.stages)
    whole = [s + r for s, r in zip(saved, recomputed, strict=True)]
    kept = whole if kept is None else _by_stage("kept", kept, schedule.stages)
    if any(k > w for k, w in zip(kept, whole, strict=True)):
        raise ValueError(f"kept bytes are part of the saved ones, so {max(kept)} is too many")
    states = [MemoryBreakdown()] * schedule.ranks if states is None else states
    if len(states) != schedule.ranks:
        raise ValueError(f"states must be one for each of {schedule.ranks} ranks, not {len(states)}")

    histories = []
    for rank, actions in enumerate(schedule.actions):
        alive = 0.0
        steps = [(execution.start, alive, "")]
        around = bytes_around(actions, saved, kept, recomputed)
        rows = zip(actions, execution.starts[rank], execution.ends[rank], around, strict=True)
        for action, start, end, (during, after) in rows:
            for time, held in ((start, during), (end, after)):
                if held != alive:
                    alive = held
                    steps.append((time, alive, schedule.span_name(action)))
        times, totals, names = zip(*steps, strict=True)
        base = states[rank].activations
        held = tuple(replace(states[rank], activations=base + total) for total in totals)
        histories.append(MemoryHistory(rank, times, held, names, execution.end))
    return histories


def bytes_around(
    actions: Iterable[Action], saved: Sequence[float], kept: Sequence[float], recomputed: Sequence[float]
) -> Iterator[tuple[float, float]]:
    """For each action of one rank: the bytes alive while it runs, and after it. The lists are by stage."""
    alive = 0.0
    for kind, stage, _ in actions:
        if kind == "F":
            alive += saved[stage]
        elif kind != "W":
            alive += recomputed[stage]
        during = alive
        if kind == "B":
            alive -= saved[stage] + recomputed[stage] - kept[stage]
        elif kind == "W":
            alive -= kept[stage]
        elif kind == "BW":
            alive -= saved[stage] + recomputed[stage]
        yield during, alive


def peak_saved(schedule: Schedule, saved: Sequence[float], kept: Sequence[float]) -> list[float]:
    """The most bytes that each rank holds at once: the peaks of ``replay`` without their times.

    A rank does one action after the other, so its own order decides its peak, however long the actions take.

    Args:
        saved, kept: as in ``replay``, one number a stage.
    """
    saved, kept = _by_stage("saved", saved, schedule.stages), _by_stage("kept", kept, schedule.stages)
    change = {
        "F": saved,
        "B": [k - s for s, k in zip(saved, kept, strict=True)],
        "W": [-k for k in kept],
        "BW": [-s for s in saved],
    }
    peaks = []
    for actions in schedule.actions:
        alive = accumulate((change[kind][stage] for kind, stage, _ in actions), initial=0.0)
        peaks.append(max(alive))
    return peaks


def _by_stage(name: str, value: float | Sequence[float], stages: int) -> Sequence[float]:
    if isinstance(value, int | float):
        not_negative(**{name: value})
        return [value] * stages
    amounts(**{name: value})
    if len(value) != stages:
        raise ValueError(
            f"{name} must be one number of bytes, or one for each of {stages} stages, not {value}"
        )
    return value
