"""Chapter 19: whole gradients against 1 %, on ten ranks whose backward hides messages, but not the coding."""

from __future__ import annotations

from course_lib.chapters.refused import Refused
from simulator.inputs.checks import not_negative
from simulator.ledgers.timeline import Span, Timeline
from simulator.plots import plot_timeline
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

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


def saved(message: float) -> float:
    """Ms by which 1 % without coding is sent earlier, where the message of a whole bucket takes so many."""
    return backward_with(message).makespan - BUCKETS * BACKWARD - PART * message


def faster_from(coding: float) -> float:
    """Ms of a whole bucket's message from which 1 % is faster, if the coding of a bucket takes so many.

    Raises:
        Refused: it is negative.
    """
    try:
        not_negative(coding=coding)
    except ValueError as refused:
        raise Refused(str(refused)) from None
    needed = BUCKETS * coding
    hidden = needed / (1 - PART)  # only the last message is exposed
    return hidden if hidden <= BACKWARD else (needed + (BUCKETS - 1) * BACKWARD) / (BUCKETS - PART)


def plot_saved(coding: float) -> Picture:
    """What 1 % saves over the length of a message, and what coding costs. The dot is where 1 % becomes faster.

    Args:
        coding: ms that the GPU needs to code a bucket.
    """
    from matplotlib.figure import Figure

    start, cost = faster_from(coding), BUCKETS * coding
    longest = max(2 * BACKWARD, 1.4 * start)
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axis = figure.subplots()
    points = [0, BACKWARD, longest]
    axis.axvspan(0, BACKWARD, color="#eeeeee")
    axis.plot(points, [saved(m) for m in points], color="#cc6a26", linewidth=2.2)
    axis.axhline(cost, color="#222222", linestyle="--", linewidth=1.4)
    axis.plot(start, cost, "o", color="#222222", markersize=7)
    top = saved(longest)
    axis.text(0.02 * longest, 0.97 * top, "backward hides\nnine of ten", fontsize=TEXT, va="top")
    coded = f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}"
    low = cost < top / 8  # no room below the line
    end, above = (longest, "right") if low else (0.02 * longest, "left")
    notes = (
        ("saved by sending 1 %", 0.93 * longest, saved(0.93 * longest), (-8, 2), "right"),
        (f"coding ten buckets: {coded} ms", end, cost, (0, 5), above),
        (
            f"faster from {start:.3g} ms on",
            start,
            cost,
            (-2, 8) if low else (8, -14),
            "right" if low else "left",
        ),
    )
    for text, x, y, beside, side in notes:
        axis.annotate(text, (x, y), xytext=beside, textcoords="offset points", ha=side, fontsize=TEXT)
    axis.set(xlim=(0, longest), ylim=(0, top))
    axis.set_xlabel("ms for the message of a whole bucket", fontsize=TEXT, loc="right")
    axis.set_ylabel("ms of a step", fontsize=TEXT)
    plain_axes(axis)
    said = f"up to {BACKWARD:g} ms at most {saved(BACKWARD):.3g}, at {longest:.3g} ms {top:.3g}"
    return render(figure, f"Ms saved by 1 %: {said}. Coding takes {coded}: faster from {start:.3g} ms on.")


def plot_step(line: Timeline) -> Picture:
    """A step of one rank; the title says how long it takes, and how much of it is computing."""
    computing = sum(span.duration for span in line.of(0, "compute"))
    title = f"whole gradients: all sent after {line.makespan:.3g} ms, {computing:.0f} of them computing"
    return plot_timeline(line, titles=[title], unit="ms")
