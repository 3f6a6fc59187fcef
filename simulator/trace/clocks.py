"""Traces of several machines on one clock: their own clocks differ by more than a collective takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from simulator.trace.files.intervals import Intervals
from simulator.trace.files.rank import RankTrace
from simulator.trace.groups import Axes, calls_within, met


def on_one_clock(traces: Sequence[RankTrace], axis_of: Axes) -> list[RankTrace]:
    """The traces by the clock of the first one's machine.

    A collective ends on all its ranks at the same time, so the median of how much later it seems to end on another
    machine is how far that machine's clock is ahead. A machine without a common collective keeps its clock.
    """
    host = {trace.rank: trace.host for trace in traces}
    if len(set(host.values())) == 1:
        return [*traces]
    later: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in range(len(traces[0].steps)):
        inside = {trace.rank: calls_within(trace.calls, *trace.steps[number]) for trace in traces}
        for _, calls in met(inside, axis_of):
            for one, call in calls.items():
                for other, its in calls.items():
                    later[host[one], host[other]].append(its.end - call.end)
    ahead = {traces[0].host: 0.0}
    for known in (found := [traces[0].host]):  # it grows while it is walked through
        for (one, other), seconds in later.items():
            if one == known and other not in ahead:
                ahead[other] = ahead[one] + median(seconds)
                found.append(other)
    return [_shifted(trace, -ahead.get(trace.host, 0.0)) for trace in traces]


def _shifted(trace: RankTrace, by: float) -> RankTrace:
    def moved(pairs: Intervals) -> Intervals:
        return [(start + by, end + by) for start, end in pairs]

    names = ("steps", "computing", "backward", "updating", "copying")
    lists = {name: moved(getattr(trace, name)) for name in names}
    calls = [call._replace(start=call.start + by, end=call.end + by) for call in trace.calls]
    return replace(trace, calls=calls, at_work=[moment + by for moment in trace.at_work], **lists)
