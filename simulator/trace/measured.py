"""What the traces of all ranks say of a step: computing, communication that nothing hides, and who waits for whom."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from simulator.ledgers.timeline import Span, Timeline
from simulator.trace.clocks import on_one_clock
from simulator.trace.files.intervals import Intervals, between, difference, intersection, length, union
from simulator.trace.files.rank import RankTrace
from simulator.trace.groups import Axes, calls_within, met

DRAWN = 2000  # pieces of a step: computing that is interrupted for less is drawn as one box


@dataclass
class RankStep:
    """One rank in a step, in seconds of the trace's clock; a mean over its steps where numbers are given.

    Args:
        seconds: from the step's start to its end.
        computing: in which an operator or a kernel ran; ``updating`` is the optimizer's part of it.
        exposed: by axis, in which it computed nothing while a collective was on its way.
        late: of these by axis, those in which some rank of the group had not yet come to the collective.
        calls: collectives by axis.
        copying: in which there was nothing but a copy between the GPU and the host.
        blamed: by axis, how often it was the last to come to a collective, and the seconds that the others together
            lost by it.
    """

    rank: int
    seconds: float = 0.0
    computing: float = 0.0
    updating: float = 0.0
    copying: float = 0.0
    exposed: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    late: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    blamed: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def idle(self) -> float:
        """Neither computing nor waiting for a message: Python, data, or launches of kernels."""
        return max(0.0, self.seconds - self.computing - self.copying - sum(self.exposed.values()))


@dataclass(frozen=True)
class Measured:
    """The steps of a run.

    Args:
        ranks: one entry a rank, its mean over the steps.
        steps: how many steps the traces hold.
        timeline: the step of median length, from 0 seconds.
    """

    ranks: list[RankStep]
    steps: int
    timeline: Timeline

    @property
    def seconds(self) -> float:
        return sum(rank.seconds for rank in self.ranks) / len(self.ranks)

    @property
    def axes(self) -> list[str]:
        return sorted({axis for rank in self.ranks for axis in rank.calls})

    def mean(self, what: str, axis: str | None = None) -> float:
        """Of all ranks, of a field of ``RankStep``."""
        found = [getattr(rank, what) for rank in self.ranks]
        return sum(found if axis is None else (by_axis.get(axis, 0.0) for by_axis in found)) / len(found)


def measure(traces: Sequence[RankTrace], axes: Mapping[str, int] | None = None) -> Measured:
    """What happened in a step.

    Args:
        traces: one a rank.
        axes: the plan's, outermost first: a group whose name says nothing is known by its ranks.

    Raises:
        ValueError: two traces are of one rank, or have different numbers of steps.
    """
    traces = sorted(traces, key=lambda trace: trace.rank)
    numbers = [trace.rank for trace in traces]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"each rank needs one trace, and these are of ranks {', '.join(map(str, numbers))}")
    counts = {len(trace.steps) for trace in traces}
    if len(counts) > 1:
        raise ValueError(
            f"all traces need the same steps, and they hold {', '.join(map(str, sorted(counts)))}"
        )
    (steps,) = counts
    axis_of = Axes(axes or {})
    traces = on_one_clock(traces, axis_of)
    waits = {trace.rank: _waits(trace, axis_of) for trace in traces}
    found = {trace.rank: RankStep(trace.rank) for trace in traces}
    own = [[calls_within(trace.calls, *step) for step in trace.steps] for trace in traces]
    for trace, in_steps in zip(traces, own, strict=True):
        for step, inside in zip(trace.steps, in_steps, strict=True):
            for call in inside:
                found[trace.rank].calls[axis_of(call)] += 1 / steps
            _add(found[trace.rank], trace, step, waits[trace.rank], steps)
    # by who waited, and for whom, and on which axis
    lost: dict[tuple[int, int, str], Intervals] = defaultdict(list)
    times: dict[tuple[int, str], int] = Counter()
    for number in range(steps):
        for axis, calls in met(
            {rank: calls[number] for rank, calls in zip(numbers, own, strict=True)}, axis_of
        ):
            last = max(calls, key=lambda rank: calls[rank].start)
            times[last, axis] += 1
            for rank, call in calls.items():
                waited = between(waits[rank].get(axis, []), call.start, min(calls[last].start, call.end))
                lost[rank, last, axis] += waited
    for (rank, last, axis), pairs in lost.items():
        seconds = length(union(pairs)) / steps  # several collectives may be on their way at once
        found[rank].late[axis] += seconds
        before = found[last].blamed.get(axis, (0.0, 0.0))[1]
        found[last].blamed[axis] = times[last, axis] / steps, before + seconds
    order = sorted(range(steps), key=lambda s: sum(t.steps[s][1] - t.steps[s][0] for t in traces))
    return Measured([*found.values()], steps, _timeline(traces, order[steps // 2], axis_of))


def _add(
    to: RankStep, trace: RankTrace, step: tuple[float, float], waits: Mapping[str, Intervals], steps: int
) -> None:
    """One step of a rank, as a part of the mean."""
    computing = between(trace.computing, *step)
    waited = {axis: between(pairs, *step) for axis, pairs in waits.items()}
    to.seconds += (step[1] - step[0]) / steps
    to.computing += length(computing) / steps
    to.updating += length(intersection(computing, between(trace.updating, *step))) / steps
    busy = union([*computing, *(pair for pairs in waited.values() for pair in pairs)])
    to.copying += length(difference(between(trace.copying, *step), busy)) / steps
    for axis, pairs in waited.items():
        to.exposed[axis] += length(pairs) / steps


def _waits(trace: RankTrace, axis_of: Axes) -> dict[str, Intervals]:
    """When a rank computed nothing because a collective was on its way, by axis; no moment counts for two of them.

    A GPU waits while a kernel of NCCL runs alone. On a CPU a collective may go on while Python is at work between two
    operators, and a thread that waits for it goes on when it ends. So what counts is the time before the end of a
    collective, back to where an operator last began or ended.
    """
    by_axis: dict[str, list[tuple[float, float]]] = defaultdict(list)
    edges = () if trace.gpu else [*chain.from_iterable(trace.computing)]
    for call in trace.calls:
        start = call.start
        for moments in (edges, trace.at_work):
            if at := bisect_left(moments, call.end):
                start = max(start, moments[at - 1])
        by_axis[axis_of(call)].append((start, call.end))
    left = difference([(float("-inf"), float("inf"))], trace.computing)
    found: dict[str, Intervals] = {}
    for axis, pairs in sorted(by_axis.items(), key=lambda item: sum(end - start for start, end in item[1])):
        found[axis] = intersection(left, union(pairs))  # that of the shorter ones comes first
        left = difference(left, found[axis])
    return found


def _timeline(traces: Sequence[RankTrace], number: int, axis_of: Axes) -> Timeline:
    """One step as the course draws it."""
    zero = min(trace.steps[number][0] for trace in traces)
    spans = []
    for trace in traces:
        step = trace.steps[number]
        computing = between(trace.computing, *step)
        update = between(trace.updating, *step)
        backward = difference(between(trace.backward, *step), update)
        forward = difference(computing, union([*update, *backward]))
        lanes = {
            "update": intersection(computing, update),
            "backward": intersection(computing, backward),
            "forward" if trace.backward else "computing": forward,
        }
        for name, pairs in lanes.items():
            for start, end in union(pairs, gap=(step[1] - step[0]) / DRAWN):
                spans.append(Span(trace.rank, "compute", name, start - zero, end - zero))
        for call in calls_within(trace.calls, *step):
            name = f"{call.kind} {axis_of(call)}"
            spans.append(Span(trace.rank, "communication", name, call.start - zero, call.end - zero))
    return Timeline(spans)
