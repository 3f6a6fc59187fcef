"""The time ledger: what every rank did, from when to when."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

BUBBLES = ("idle", "internal", "overhead")


class Span(NamedTuple):
    """One piece of work on one lane of one rank.

    Args:
        rank: who did it, counted from 0.
        lane: ``"compute"``, ``"communication"``, ``"copy"``…: what can only do one thing at a time.
        name: what it was: ``"F3"`` (forward of microbatch 3), ``"bucket 2"``, ``"all-gather block 1"``.
        start: seconds (measured) or the unit of the given durations (predicted).
        end: the same unit; never before ``start``.
    """

    rank: int
    lane: str
    name: str
    start: float
    end: float

    @property
    def duration(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """Spans of every rank on one clock, predicted by the engine or measured on real ranks.

    Raises:
        ValueError: a span ends before it starts, or one of the two is NaN or infinite.
    """

    spans: tuple[Span, ...]

    def __init__(self, spans: Iterable[Span]) -> None:
        spans = tuple(sorted(spans))
        for span in spans:
            if not -inf < span.start <= span.end < inf:
                raise ValueError(
                    f"span {span.name!r} of rank {span.rank} must start at a finite time and end then or later, not "
                    f"start at {span.start} and end at {span.end}"
                )
        object.__setattr__(self, "spans", spans)

    @cached_property
    def _by_rank(self) -> dict[int, dict[str, list[Span]]]:
        """Rank -> lane -> its spans in order of their start: sorted out once, however often they are asked for."""
        found: dict[int, dict[str, list[Span]]] = {}
        for span in sorted(self.spans, key=lambda s: (s.rank, s.start, s.end)):
            found.setdefault(span.rank, {}).setdefault(span.lane, []).append(span)
        return {rank: dict(sorted(lanes.items())) for rank, lanes in found.items()}

    @property
    def ranks(self) -> list[int]:
        return list(self._by_rank)

    @property
    def lanes(self) -> list[str]:
        return sorted({lane for lanes in self._by_rank.values() for lane in lanes})

    @cached_property
    def start(self) -> float:
        return min((span.start for span in self.spans), default=0.0)

    @cached_property
    def end(self) -> float:
        return max((span.end for span in self.spans), default=0.0)

    @property
    def makespan(self) -> float:
        """From the first start on any rank to the last end on any rank."""
        return self.end - self.start

    def of(self, rank: int | None = None, lane: str | None = None) -> list[Span]:
        """The spans of one rank, one lane, or both, in order of their start."""
        ranks = self._by_rank.values() if rank is None else [self._by_rank.get(rank, {})]
        chosen = [spans for lanes in ranks for name, spans in lanes.items() if lane in (None, name)]
        if len(chosen) == 1:
            return list(chosen[0])
        return sorted(chain.from_iterable(chosen), key=lambda s: (s.start, s.end))

    def busy(self, rank: int, lane: str = "compute") -> float:
        """How long the lane of that rank was at work."""
        return sum(span.duration for span in self.of(rank, lane))

    def bubble(self, definition: str = "idle", lane: str = "compute") -> float:
        """The share of time lost to waiting, by one of the three definitions in use.

        Args:
            definition:
                ``"idle"``: idle time / total time, over all ranks, from the first start to the last end of
                anything. Equals (p - 1)/(m + p - 1) for GPipe (arXiv:1811.06965).
                ``"internal"``: as ``"idle"``, but every rank is timed from its own first start to its own last
                end, and the longest of these spans counts for all: filling and draining cost nothing if the
                next step can use them. The bubble rate of zero-bubble pipelines (arXiv:2401.10241).
                ``"overhead"``: (actual - ideal)/ideal, where the ideal has every rank busy all the time.
                Equals (p - 1)/m for 1F1B (arXiv:2104.04473).
            lane: the lane that should never be idle.

        Raises:
            ValueError: there is no such definition, or nothing on that lane.
        """
        spans_of = {rank: spans for rank in self.ranks if (spans := self.of(rank, lane))}
        if definition not in BUBBLES:
            raise ValueError(f"bubble {definition!r} is unknown: choose from {', '.join(BUBBLES)}")
        if not spans_of:
            raise ValueError(
                f"no span lies on lane {lane!r}: the lanes are {', '.join(self.lanes) or 'none'}"
            )
        busy = sum(span.duration for spans in spans_of.values() for span in spans) / len(spans_of)
        if definition == "internal":
            total = max(max(s.end for s in spans) - spans[0].start for spans in spans_of.values())
        else:
            total = self.makespan
        reference = busy if definition == "overhead" else total
        return (total - busy) / reference if reference else 0.0

    def chrome_trace(self) -> dict[str, Any]:
        """The timeline in Chrome's trace format: a process a rank, a thread a lane, times taken as seconds.

        https://ui.perfetto.dev and ``chrome://tracing`` open it.
        """
        threads = {
            lane: number for number, lane in enumerate(sorted(self.lanes, key=lambda x: (x != "compute", x)))
        }
        events: list[dict[str, Any]] = []
        for rank in self.ranks:
            events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
            events.append(
                {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
            )
        for rank, lane in sorted({(span.rank, span.lane) for span in self.spans}):
            named = {
                "ph": "M",
                "name": "thread_name",
                "pid": rank,
                "tid": threads[lane],
                "args": {"name": lane},
            }
            events.append(named)
        for rank, lane, name, start, end in self.spans:
            times = {"ts": (start - self.start) * 1e6, "dur": (end - start) * 1e6}  # microseconds
            events.append({"ph": "X", "name": name, "cat": lane, "pid": rank, "tid": threads[lane], **times})
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save_trace(self, path: str | Path) -> None:
        """Write ``chrome_trace`` as JSON."""
        Path(path).write_text(json.dumps(self.chrome_trace()), encoding="utf-8")
