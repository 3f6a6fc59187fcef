"""Chapter 19: whole gradients against 1 %, on ten ranks whose backward hides messages, but not the coding."""

from __future__ import annotations

from course_lib.chapters.refused import Refused
from simulator.inputs.checks import not_negative
from simulator.ledgers.timeline import Span, Timeline
from simulator.plots import plot_curves, plot_timeline
from simulator.plots.picture import Picture

BUCKETS = 10
BACKWARD = 10.0  # ms of backward for a bucket
PART = 0.1  # of a whole bucket's message: 1 % on ten ranks


def backward_with(message: float, coding: float = 0.0, name: str = "bucket") -> Timeline:
    """Backward on one rank: after its part of backward a bucket is coded, and sent when the link is free. In ms."""
    spans, now, free = [], 0.0, 0.0
    for bucket in reversed(range(BUCKETS)):
        spans.append(Span(0, "compute", f"backward {bucket}", now, now + BACKWARD))
        spans.append(Span(0, "compute", "coding", now + BACKWARD, now + BACKWARD + coding))
        now += BACKWARD + coding
        free = max(now, free) + message
        spans.append(Span(0, "communication", f"{name} {bucket}", free - message, free))
    return Timeline(span for span in spans if span.duration)


def race(message: float, coding: float) -> Picture:
    """Whole gradients and 1 % on ten ranks, until all buckets are sent.

    Args:
        message: ms that the message of a whole bucket takes.
        coding: ms that the GPU needs to code a bucket.

    Raises:
        Refused: one of them is negative.
    """
    try:
        not_negative(message=message, coding=coding)
    except ValueError as refused:
        raise Refused(str(refused)) from None
    both = {
        "whole gradients": backward_with(message),
        "1 %": backward_with(PART * message, coding, "all-gather"),
    }
    titles = [f"{name}: all sent after {line.makespan:.4g} ms" for name, line in both.items()]
    return plot_timeline(*both.values(), titles=titles, unit="ms")


def turning_point(coding: float, most: float = 100.0) -> float:
    """The shortest message of a whole bucket, in ms, with which 1 % is sent first."""
    low, high = 0.0, most
    while high - low > 1e-6:
        middle = (low + high) / 2
        ahead = backward_with(PART * middle, coding).makespan < backward_with(middle).makespan
        low, high = (low, middle) if ahead else (middle, high)
    return high


def plot_turning_point(coding: float, most: int = 16) -> Picture:
    """When all buckets are sent, over the message of a whole bucket."""
    times = range(most + 1)
    turn = turning_point(coding)
    return plot_curves(
        {
            "whole gradients": [backward_with(m).makespan for m in times],
            f"1 %, {coding:g} ms of coding": [backward_with(PART * m, coding).makespan for m in times],
        },
        x="message of a whole bucket, ms",
        y="all sent after, ms",
        mark=(turn, f"{turn:.1f} ms"),
        alt=f"Whole gradients are sent first up to messages of {turn:.1f} ms, and 1 % beyond.",
    )
