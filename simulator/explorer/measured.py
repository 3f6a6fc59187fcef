"""A measured step, laid over its prediction: when each action of a schedule really ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from statistics import median
from typing import Any

from simulator.ledgers.timeline import Span, Timeline
from simulator.pipeline.actions import Schedule

KIND_TIMES = {"F": ("forward",), "B": ("backward_input",), "W": ("backward_weight",)}
UNIT = "s"  # of what gather_timeline returns
BOTH = ("backward_input", "backward_weight")  # a whole backward: each is taken to be half of it


@dataclass(frozen=True)
class Measured:
    """When every action of a schedule ran; the first start is 0.

    Args:
        schedule: what was executed.
        starts, ends: for every rank, one number for each of its actions, in the timeline's unit.
        message: the fastest message; 0 where none was recorded.
    """

    schedule: Schedule
    starts: tuple[tuple[float, ...], ...]
    ends: tuple[tuple[float, ...], ...]
    message: float = 0.0

    @classmethod
    def of(cls, timeline: Timeline, schedule: Schedule) -> Measured:
        """Find the actions of a schedule on the lane ``"compute"`` of a recorded timeline.

        Raises:
            ValueError: it is no timeline, or not that of one step of this schedule, in one sentence.
        """
        if not isinstance(timeline, Timeline):
            raise ValueError(f"measured must be a Timeline, not {timeline!r}")
        found = [list(_actions(timeline, rank)) for rank in range(schedule.ranks)]
        for rank, (spans, actions) in enumerate(zip(found, schedule.actions, strict=True)):
            names = [schedule.span_name(action) for action in actions]
            for at, (span, name) in enumerate(zip_longest(spans, names)):
                if span is None or span.name != name:
                    raise ValueError(
                        f"measured must be one step of {schedule.name} with {schedule.ranks} ranks and "
                        f"{schedule.microbatches} microbatches: action {at} of rank {rank} is "
                        f"{span.name if span else 'missing'} there, not {name or 'the end'}"
                    )
        zero = min(spans[0].start for spans in found if spans)
        sends = [span.duration for span in timeline.of(lane="communication") if span.name.startswith("send ")]
        return cls(
            schedule,
            tuple(tuple(span.start - zero for span in spans) for spans in found),
            tuple(tuple(span.end - zero for span in spans) for spans in found),
            min(sends, default=0.0),
        )

    def times(self) -> dict[str, float]:
        """What a ``Question`` takes: the median of each kind of action, times the chunks of a rank, and the message.

        Four digits are kept, because a reader sees them in the fields.
        """
        took = defaultdict(list)
        for actions, starts, ends in zip(self.schedule.actions, self.starts, self.ends, strict=True):
            for action, start, end in zip(actions, starts, ends, strict=True):
                parts = KIND_TIMES.get(action.kind, BOTH)
                for part in parts:
                    took[part].append((end - start) / len(parts))
        found = {part: median(each) * self.schedule.chunks for part, each in took.items()}
        return {name: float(f"{value:.4g}") for name, value in (found | {"transfer": self.message}).items()}

    def timeline(self) -> Timeline:
        """What was measured, as the still picture draws it."""
        return Timeline(
            Span(rank, "compute", self.schedule.span_name(action), start, end)
            for rank, actions in enumerate(self.schedule.actions)
            for action, start, end in zip(actions, self.starts[rank], self.ends[rank], strict=True)
        )

    def as_dict(self) -> dict[str, Any]:
        """What the page needs; starts and ends of all ranks one behind the other, as in an ``Answer``."""
        sizes = {name: getattr(self.schedule, name) for name in ("name", "ranks", "microbatches", "chunks")}
        return sizes | {"unit": UNIT, "start": list(chain(*self.starts)), "end": list(chain(*self.ends))}


def _actions(timeline: Timeline, rank: int) -> Iterator[Span]:
    """What a rank computed, in order; two actions that ran as one are two spans with the same times."""
    for span in timeline.of(rank, "compute"):
        for name in span.name.split(" + "):
            yield span._replace(name=name)
