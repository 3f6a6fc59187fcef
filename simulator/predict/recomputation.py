"""Recomputation over one step: what is kept, what comes back, and how much work that is.

A layer (or several together: a segment) keeps ``kept`` bytes from its forward to the end of its backward. The rest
of what its backward needs, ``again``, is made a second time just before. After arXiv:1604.06174 and
arXiv:2205.05198.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isclose

from simulator.inputs.checks import amounts, at_least, finite, not_negative, refuse
from simulator.inputs.chunks import chunk_sizes
from simulator.ledgers.memory import MemoryBreakdown, MemoryHistory


@dataclass(frozen=True)
class Segment:
    """A part of a model whose forward may run twice.

    Args:
        kept: bytes alive from its forward until its backward has ended.
        again: bytes that come back for its backward, and go with it; below 0 where the segment keeps a tensor that,
            without recomputation, is counted with the segment before it.
        forward: work of its forward, in FLOPs or in any other unit; its backward is twice that.
        repeated: the part of this work that is done again.
        parts: what each of its submodules saves without recomputation, together ``kept + again`` bytes. The second
            forward brings them back one by one, and backward drops them in reverse. Without it, ``again`` comes
            back and goes at one moment each.
    """

    kept: float
    again: float = 0
    forward: float = 1
    repeated: float = 0
    parts: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        not_negative(kept=self.kept, forward=self.forward, repeated=self.repeated)
        finite(again=self.again)
        amounts(parts=self.parts)
        if self.parts and not isclose(sum(self.parts), self.kept + self.again):
            refuse("parts", f"bytes that add up to kept + again, {self.kept + self.again} here", self.parts)

    def in_backward(self) -> list[tuple[str, float, float]]:
        """Its steps in backward: what is done, the bytes alive besides ``kept``, and the work."""
        if not self.parts:
            return [("backward", self.again, self.repeated + 2 * self.forward)]
        back = [max(min(0, self.again), so_far - self.kept) for so_far in accumulate(self.parts)]
        second = [("recompute", bytes, self.repeated / len(back)) for bytes in back]
        return second + [("backward", bytes, 2 * self.forward / len(back)) for bytes in reversed(back)]


def step_history(segments: Sequence[Segment]) -> MemoryHistory:
    """Activations alive during one forward and backward; the time is that of the work.

    The peak is the largest of: everything kept up to a segment, and what comes back for it.
    """
    if not segments:
        raise ValueError("a step needs at least one segment, not none")
    time, alive = 0.0, 0.0
    steps = [(time, alive, "")]
    for number, segment in enumerate(segments):
        alive += segment.kept
        steps.append((time, alive, f"forward {number}"))
        time += segment.forward
    for number, segment in reversed(list(enumerate(segments))):
        for action, besides, work in segment.in_backward():
            steps.append((time, alive + besides, f"{action} {number}"))
            time += work
        alive -= segment.kept
    times, totals, actions = zip(*steps, (time, alive, "end"), strict=True)
    held = tuple(MemoryBreakdown(activations=total) for total in totals)
    return MemoryHistory(0, times, held, actions, time)


def peak_bytes(segments: Sequence[Segment]) -> float:
    """The most bytes of activations alive at once."""
    return step_history(segments).peak.bytes


def equal_layers(layers: int, segments: int, saved: float, kept: float) -> list[Segment]:
    """``layers`` layers in ``segments`` segments, as even as can be, longer ones first.

    Args:
        saved: bytes that a layer adds to what its backward needs.
        kept: bytes of a segment's input.
    """
    at_least(1, layers=layers, segments=segments)
    not_negative(saved=saved, kept=kept)
    if segments > layers:
        raise ValueError(f"{layers} layers can be cut into 1 to {layers} segments, not {segments}")
    return [Segment(kept, n * saved, n, n) for n in chunk_sizes(layers, segments)]
