"""Chapter 19: whole gradients, bf16 and 1 %, on ten ranks whose backward hides messages, but not the coding."""

from __future__ import annotations

from math import inf

from course_lib.chapters.refused import Refused
from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table
from simulator.inputs.checks import not_negative, positive
from simulator.ledgers.timeline import Span, Timeline
from simulator.plots import plot_timeline
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, plain_axes

BUCKETS = 10
BACKWARD = 10.0  # ms of backward for a bucket
PART = 0.1  # of a whole bucket's message: 1 % on ten ranks
HALF = 0.5  # of it: bf16
NUMBERS = 12_440_000  # in a bucket: a tenth of GPT-2
SENT = 2 * 9 / 10 * 4 * NUMBERS  # bytes that one of ten ranks sends for a whole bucket
COLOURS = {"whole gradients": "#222222", "bf16": "#1f7a6d", "1 %": "#cc6a26"}


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


def lines(message: float, coding: float) -> dict[str, Timeline]:
    """The three rivals. Rounding to bf16 is taken to cost nothing."""
    return {
        "whole gradients": backward_with(message),
        "bf16": backward_with(HALF * message),
        "1 %": backward_with(PART * message, coding, "all-gather"),
    }


def race(message: float, coding: float) -> Picture:
    """Bf16 and 1 % on ten ranks, until all buckets are sent.

    Args:
        message: ms that the message of a whole bucket takes.
        coding: ms that the GPU needs to code a bucket for 1 %.

    Raises:
        Refused: one of them is negative.
    """
    checked(message=message, coding=coding)
    two = {name: line for name, line in lines(message, coding).items() if name != "whole gradients"}
    titles = [f"{name}: all sent after {line.makespan:.4g} ms" for name, line in two.items()]
    late = two["1 %"].makespan - two["bf16"].makespan
    titles[1] += f", {abs(late):.3g} ms {'later' if late > 0 else 'earlier'}" if abs(late) > 1e-9 else " too"
    return plot_timeline(*two.values(), titles=titles, unit="ms")


def checked(**times: float) -> None:
    try:
        not_negative(**times)
    except ValueError as refused:
        raise Refused(str(refused)) from None


def faster_from(coding: float, more: float = 1.0) -> float:
    """Ms of a whole bucket's message from which 1 % is faster than bf16.

    Args:
        coding: ms that the GPU needs to code a bucket for 1 %.
        more: steps that 1 % needs for each step of bf16.

    Raises:
        Refused: one of them is negative.
    """
    checked(coding=coding, more=more)
    needed = more * BUCKETS * (BACKWARD + coding)
    hidden = (needed - BUCKETS * BACKWARD) / (HALF - more * PART)  # only the last message is exposed
    queue = BACKWARD / HALF  # from here on the messages of bf16 queue
    return hidden if hidden <= queue else (needed - BACKWARD) / (BUCKETS * HALF - more * PART)


def link_up_to(coding: float, more: float = 1.0) -> float:
    """GB/s of the link below which 1 % is faster than bf16, for ten ranks of GPT-2."""
    message = faster_from(coding, more)
    return SENT / 1e6 / message if message else inf


def who_is_first(link: float, coding: float, more: float) -> Shown:
    """What a step and a training take on ten ranks of GPT-2, over a link in GB/s and with a coding in ms.

    Raises:
        Refused: the link or the coding cannot be.
    """
    try:
        positive(link=link)
    except ValueError as refused:
        raise Refused(str(refused)) from None
    checked(coding=coding)
    steps = {name: line.makespan for name, line in lines(SENT / 1e6 / link, coding).items()}
    trained = {name: step * (more if name == "1 %" else 1) for name, step in steps.items()}
    whole = trained["whole gradients"]
    rows = [[name, f"{steps[name]:.1f} ms", f"{100 * t / whole:.1f} %"] for name, t in trained.items()]
    head = [f"{link:g} GB/s, coding {coding:g} ms", "a step", "the training"]
    fastest, first = (min(ms, key=lambda name: ms[name]) for ms in (steps, trained))
    training = "and" if fastest == first else f"but {first}"
    return table(head, rows, f"{fastest} has the fastest step, {training} the fastest training.")


def plot_map(mine: float, device: str, more: float) -> Picture:
    """Which trains faster on ten ranks of GPT-2, 1 % or bf16, over the link and the coding of a bucket.

    Args:
        mine: ms that the coding of a bucket took on this device.
        device: its name.
        more: steps that 1 % needs for each step of bf16.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    left, end, high = 0.01, 100.0, max(1000.0, 2 * mine)
    codings = [i / 100 for i in range(100)] + [high ** (i / 200) for i in range(201)]
    step, training = ([min(max(left, link_up_to(c, m)), end) for c in codings] for m in (1.0, more))
    figure = Figure(figsize=(WIDTH, 4), layout="constrained")
    axis = figure.subplots()
    for edges, colour in (([end] * len(codings), "#cfe6e2"), (step, "#fbeadd"), (training, "#f2c49f")):
        axis.fill_betweenx(codings, left, edges, color=colour, linewidth=0)
    axis.plot(training, codings, color="#222222", linewidth=1.8)
    axis.plot(step, codings, "--", color="#222222", linewidth=1.2)
    axis.axhline(mine, color="#222222", linestyle=":", linewidth=1.4)
    place = {"textcoords": "offset points", "fontsize": TEXT}
    took = f"{mine:,.0f}" if mine >= 100 else f"{mine:.2g}"
    borders = {"no coding": 0.0, "5 ms": 5.0, f"your {device}, {took} ms": mine}
    words = [f"{name}: up to {link_up_to(coding, more):.2g} GB/s" for name, coding in borders.items()]
    for said, coding in zip(words, borders.values(), strict=True):
        x = link_up_to(coding, more)
        axis.plot(x, coding, "o", color="#222222", markersize=6, clip_on=False, zorder=5)
        start, away, side = (x, coding), (-8, 4), "right"
        if coding == mine:  # its label lies beside the black line
            start, away, side = (
                ((left, coding), (5, 4), "left") if x > 1 else ((end, coding), (-5, 5), "right")
            )
        axis.annotate(said, start, xytext=away, ha=side, **place)
    style = {"fontsize": TEXT, "va": "center", "zorder": 4, "arrowprops": {"arrowstyle": "-"}}
    band, free = (1.25 * link_up_to(0, more), 0.15), {"pad": 1, "linewidth": 0}
    green = free | {"facecolor": "#cfe6e2"}
    axis.annotate("faster steps,\nlonger training", band, xytext=(12, 3), bbox=green, **style)
    axis.set(xscale="log", xlim=(left, end), ylim=(0, high))
    axis.set_yscale("symlog", linthresh=1)
    for x, y, said, colour, box in (
        (0.05, 100, "1 %", "#8a3f0c", free | {"facecolor": "#f2c49f"}),
        (12, 12, "bf16", "#11564c", green),
    ):
        axis.text(x, y, said, color=colour, fontsize=TITLE, va="center", bbox=box)
    axis.set_xticks([0.01, 0.1, 1, 10, 100], ["0.01 GB/s", "0.1 GB/s", "1 GB/s", "10 GB/s", "100 GB/s"])
    ticks = [t for t in (0, 1, 10, 100, 1000, 10_000) if t <= high]
    axis.set_yticks(ticks, [f"{t:,}" for t in ticks])
    for each in (axis.xaxis, axis.yaxis):
        each.set_minor_locator(NullLocator())
    axis.tick_params(labelsize=TEXT)
    axis.set_ylabel("coding of a bucket, ms", fontsize=TEXT)
    axis.set_xlabel("link of a rank", fontsize=TEXT, loc="right")
    return render(figure, f"Links on which 1 % trains faster than bf16: {'; '.join(words)}.")


def plot_steps(coding: float) -> Picture:
    """How long a step takes over the length of a message. The dot is where 1 % becomes faster than bf16.

    Args:
        coding: ms that the GPU needs to code a bucket for 1 %.
    """
    from matplotlib.figure import Figure

    start = faster_from(coding)
    longest = max(2 * BACKWARD / HALF, 1.4 * start)
    points = [0, BACKWARD, BACKWARD / HALF, longest]
    steps = {name: [lines(m, coding)[name].makespan for m in points] for name in COLOURS}
    top, bottom = 1.08 * steps["bf16"][-1], 0.8 * BUCKETS * BACKWARD
    leaves = (0.94 * top - BACKWARD) / BUCKETS  # where the line of whole gradients is near the top
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axis = figure.subplots()
    for name, colour in COLOURS.items():
        axis.plot(points, steps[name], color=colour, linewidth=2.2)
    end = lines(start, coding)["1 %"].makespan
    above = f"{start:,.0f}" if start >= 100 else f"{start:.3g}"
    axis.plot(start, end, "o", color="#222222", markersize=7)
    notes = (
        ("whole gradients", "#222222", leaves, 0.94 * top, (-8, 0), "right"),
        ("bf16", COLOURS["bf16"], longest, steps["bf16"][-1], (6, 0), "left"),
        ("1 %", COLOURS["1 %"], longest, steps["1 %"][-1], (6, 0), "left"),
        (f"1 % is first above {above} ms", "#222222", start, end, (2, -14), "left"),
    )
    for text, colour, x, y, beside, side in notes:
        place = {"xytext": beside, "textcoords": "offset points", "ha": side, "va": "center"}
        axis.annotate(text, (x, y), color=colour, fontsize=TEXT, **place)
    axis.set(xlim=(0, longest), ylim=(bottom, top))
    axis.set_xlabel("ms for the message of a whole bucket", fontsize=TEXT, loc="right")
    axis.set_ylabel("all sent after, ms", fontsize=TEXT)
    plain_axes(axis)
    return render(
        figure,
        f"Ms of a step over the message of a bucket: 1 % is first above {above} ms, {end:.4g} ms.",
    )


def plot_step(line: Timeline, name: str = "whole gradients") -> Picture:
    """A step of one rank; the title says how long it takes, and how much of it is backward."""
    backward = sum(span.duration for span in line.of(0, "compute") if span.name != "coding")
    title = f"{name}: all sent after {line.makespan:.3g} ms, {backward:.0f} of them backward"
    return plot_timeline(line, titles=[title], unit="ms")
