"""Chapter 19: whole gradients against 1 %, on ten ranks whose backward hides messages, but not the coding."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.utils.benchmark import Timer

from course_lib.chapters.eight_machines import GPUS as MACHINES
from course_lib.chapters.eight_machines import method_on_gpus, one_gpu, step_on_gpus
from course_lib.chapters.refused import Refused
from simulator.inputs.checks import not_negative
from simulator.inputs.known_devices import GPUS
from simulator.ledgers.timeline import Span, Timeline
from simulator.plots import plot_timeline
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


def exposed_with(method: str) -> Timeline:
    """A step of the eight machines of chapter 05, of which nothing overlaps, with one of ``METHODS``. In ms."""
    computing, step = 1e3 * one_gpu() / MACHINES, 1e3 * step_on_gpus(method_on_gpus(method))
    message = "all-gather" if method == "top-k" else "all-reduce"
    spans = [
        Span(0, "compute", "forward + backward", 0, computing),
        Span(0, "communication", message, computing, step),
    ]
    return Timeline(spans)


def plot_steps(steps: Mapping[str, Timeline]) -> Picture:
    """Steps of one rank, to one scale; the titles say how long they take, and how much of it is computing."""
    titles = []
    for name, line in steps.items():
        computing = sum(span.duration for span in line.of(0, "compute"))
        titles.append(f"{name}: {line.makespan:.3g} ms, {computing:.0f} of them computing")
    return plot_timeline(*steps.values(), titles=titles, unit="ms")
