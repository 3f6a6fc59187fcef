"""How long each stage of a pipeline worked on a microbatch, read from a recorded timeline.

With these durations ``simulator.pipeline.engine.simulate`` predicts a step under any schedule:

>>> simulate(other_schedule, **stage_times(timeline, schedule))                          # doctest: +SKIP
"""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean, median
from typing import TypedDict

from simulator.ledgers.timeline import Timeline
from simulator.pipeline.actions import Action, Schedule


class StageTimes(TypedDict):
    """Arguments of ``simulate``: seconds for each stage (or for each stage one a microbatch), and of one message."""

    forward: list
    backward_input: list
    backward_weight: list
    transfer: float


def stage_times(timeline: Timeline, schedule: Schedule, *, each: bool = False) -> StageTimes:
    """How long each kind of action took in each stage, and the fastest message.

    Where a stage does not split its backward, only the sum of both parts is known; each is taken to be half of it. A
    message can take longer because its receiver is late. So the fastest message counts.

    Args:
        timeline: of one step or several, as ``gather_timeline`` returns it.
        schedule: what was executed.
        each: a duration for every microbatch; else each stage's median over its microbatches.

    Raises:
        ValueError: the timeline is not one of this schedule.
    """
    found = durations(timeline, schedule)
    parts: dict[str, list[list[float]]] = {"forward": [], "backward_input": [], "backward_weight": []}
    for stage in range(schedule.stages):
        rows: dict[str, list[float]] = {name: [] for name in parts}
        for i in range(schedule.microbatches):
            rows["forward"].append(found[Action("F", stage, i)])
            half = found.get(Action("BW", stage, i), 0.0) / 2
            rows["backward_input"].append(found.get(Action("B", stage, i), half))
            rows["backward_weight"].append(found.get(Action("W", stage, i), half))
        for name, row in rows.items():
            parts[name].append(row if each else median(row))
    sends = [span.duration for span in timeline.of(lane="communication") if span.name.startswith("send ")]
    return StageTimes(**parts, transfer=min(sends, default=0.0))


def durations(timeline: Timeline, schedule: Schedule) -> dict[Action, float]:
    """Seconds of every action, the mean over the recorded steps."""
    found: dict[Action, list[float]] = defaultdict(list)
    for rank, actions in enumerate(schedule.actions):
        spans = timeline.of(rank, "compute")
        names = [schedule.span_name(action) for action in actions]
        steps, rest = divmod(len(spans), len(actions))
        if rest or not steps or [span.name for span in spans] != names * steps:
            raise ValueError(f"the timeline of rank {rank} does not show the actions of {schedule.name}")
        for span, action in zip(spans, actions * steps, strict=True):
            found[action].append(span.duration)
    return {action: fmean(seconds) for action, seconds in found.items()}
