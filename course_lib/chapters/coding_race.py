"""Chapter 19: whole gradients against 1 %, on ten ranks whose backward hides messages, but not the coding."""

from __future__ import annotations

import torch
from torch.utils.benchmark import Timer

from course_lib.chapters.eight_machines import GPUS as MACHINES
from course_lib.chapters.eight_machines import method_on_gpus, one_gpu, step_on_gpus
from course_lib.chapters.refused import Refused
from simulator.inputs.checks import not_negative
from simulator.inputs.known_devices import GPUS
from simulator.ledgers.timeline import Span, Timeline
from simulator.plots import plot_timeline
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

BUCKETS = 10
BACKWARD = 10.0  # ms of backward for a bucket
PART = 0.1  # of a whole bucket's message: 1 % on ten ranks
HIDDEN = 6.0  # ms of a whole bucket's message in the chapter's first case


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


def time_coding(numbers: int = 12_440_000) -> None:
    """Say the least that coding a bucket of so many numbers takes an A100, and how long the choice takes your GPU. By
    default the bucket is a tenth of GPT-2."""
    least = 1e3 * 12 * numbers / GPUS["a100-40gb"].memory_bandwidth  # reads two fp32, and writes one
    print(f"coding of a bucket: at least {least:.2f} ms on an A100")
    if not torch.cuda.is_available():
        print("the choice alone: no GPU here to time it")
        return
    bucket = torch.randn(numbers, device="cuda")
    timer = Timer("bucket.abs().topk(k)", globals={"bucket": bucket, "k": numbers // 100})
    print(f"the choice alone: {1e3 * timer.blocked_autorange().median:.2f} ms on your GPU")


def plot_two_cases(percent: bool = False) -> Picture:
    """The time of a step over that of its messages, both in parts of the computing, with two cases as dots: ten ranks
    that hide their messages, and the eight machines of chapter 05. With ``percent`` also what 1 % makes of them."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    computing = {"hidden": BUCKETS * BACKWARD, "exposed": 1e3 * one_gpu() / MACHINES}
    whole = {
        "hidden": backward_with(HIDDEN).makespan,
        "exposed": 1e3 * step_on_gpus(method_on_gpus("whole gradients")),
    }
    less = {
        "hidden": backward_with(PART * HIDDEN).makespan,
        "exposed": 1e3 * step_on_gpus(method_on_gpus("top-k", density=0.01)),
    }
    at = {"hidden": HIDDEN / BACKWARD, "exposed": whole["exposed"] / computing["exposed"] - 1}
    drawn = [("whole gradients", 1.0, whole, "#6aa9dd", 6.0, ("right", 4, 10))]
    if percent:
        drawn.append(("1 %, no coding", PART, less, "#cc6a26", 2.5, ("center", 0, -20)))
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axis = figure.subplots()
    parts = [10 ** (i / 20) for i in range(-20, 41)]
    for name, part, steps, colour, width, shift in drawn:
        line = [backward_with(part * x * BACKWARD).makespan / (BUCKETS * BACKWARD) for x in parts]
        axis.plot(parts, line, color=colour, linewidth=width, label=name)
        for case, step in steps.items():
            said = f"{case}: {step:.0f} ms" if steps is whole else f"{step:.1f} ms"
            y = step / computing[case]
            axis.plot(at[case], y, "o", color=colour, markersize=9, markeredgecolor="#222222")
            side, *offset = shift
            place = {"xytext": offset, "textcoords": "offset points", "ha": side, "fontsize": TEXT}
            axis.annotate(said, (at[case], y), **place)
    axis.axvline(1, color="#888888", linewidth=0.8, linestyle=":")
    axis.set(xscale="log", yscale="log", xlim=(0.1, 100), ylim=(0.5, 150))
    axis.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axis.set_yticks([1, 10, 100], ["1", "10", "100"])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("time of the messages ÷ computing", fontsize=TEXT, loc="right")
    axis.set_ylabel("step ÷ computing", fontsize=TEXT)
    plain_axes(axis)
    axis.legend(frameon=False, fontsize=TEXT, loc="upper left")
    cases = (
        f"{case} messages, {at[case]:.3g} times the computing: "
        + ", ".join(f"{name} {steps[case]:.1f} ms" for name, _, steps, *_ in drawn)
        for case in computing
    )
    return render(figure, f"A step over its messages. {'; '.join(cases)}.")
