"""The time ledger: who was busy with what, from when to when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Span:
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
    """Spans of every rank on one clock, predicted by the engine or measured on real ranks."""

    spans: tuple[Span, ...]

    def __init__(self, spans: Iterable[Span]) -> None:
        object.__setattr__(self, "spans", tuple(sorted(spans)))

    @property
    def ranks(self) -> list[int]:
        return sorted({span.rank for span in self.spans})

    @property
    def lanes(self) -> list[str]:
        return sorted({span.lane for span in self.spans})

    @property
    def start(self) -> float:
        return min((span.start for span in self.spans), default=0.0)

    @property
    def end(self) -> float:
        return max((span.end for span in self.spans), default=0.0)

    @property
    def makespan(self) -> float:
        """From the first start on any rank to the last end on any rank."""
        return self.end - self.start

    def of(self, rank: int | None = None, lane: str | None = None) -> list[Span]:
        """The spans of one rank, one lane, or both, in order of their start."""
        chosen = (s for s in self.spans if rank in (None, s.rank) and lane in (None, s.lane))
        return sorted(chosen, key=lambda s: s.start)

    def busy(self, rank: int, lane: str = "compute") -> float:
        """How long the lane of that rank was at work."""
        return sum(span.duration for span in self.of(rank, lane))
