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


def most_coding(message: float) -> float:
    """The coding of a bucket, in ms, below which 1 % is sent first, with this message of a whole bucket."""
    saved = backward_with(message).makespan - backward_with(PART * message).makespan
    return saved / BUCKETS


def plot_all_sent(*codings: float, most: int = 20) -> Picture:
    """When all buckets are sent, over the message of a whole bucket: whole gradients, and 1 % with each coding."""
    times = range(0, most + 1, 2)
    curves = {"whole gradients": [backward_with(m).makespan for m in times]}
    for coding in codings:
        name = f"1 %, {coding:g} ms of coding" if coding else "1 %, no coding"
        curves[name] = [backward_with(PART * m, coding).makespan for m in times]
    said = ", ".join(f"{name} {values[0]:.0f} to {values[-1]:.0f} ms" for name, values in curves.items())
    return plot_curves(
        curves,
        x="message of a whole bucket, ms",
        y="all sent after, ms",
        bottom=0,
        every=2,
        mark=(BACKWARD, "a bucket's backward"),
        alt=f"When all buckets are sent, over messages of 0 to {most} ms: {said}.",
    )
