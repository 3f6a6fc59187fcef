"""The comparison as a chapter shows it: a picture of the lines that ``kept.kept_lines`` returns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from course_lib.comparison.compression.results import Line
from course_lib.comparison.labels import place_labels
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

# Told apart by the marker, too.
FAMILIES = {  # name in the legend: colour, marker, methods
    "DDP": ("#222222", "s", ("none",)),
    "compressed gradients or momentum": (
        "#143f70",
        "o",
        ("bytegrad", "one-bit-adam", "q-adam", "top-k", "random-k", "powersgd"),
    ),
    "decentralised (ring, pairs), asynchronous": (
        "#23614a",
        "^",
        ("ring", "pairs", "ring-8-bits", "asynchronous"),
    ),
    "averages once in many steps": ("#cc6a24", "D", ("local-sgd", "diloco", "streaming-diloco")),
}


def loss_picture(lines: Sequence[Line], alt: str | None = None) -> Picture:
    """Loss on the test part over the bytes that a rank sends for a sample, a mark for each method.

    A bar is the standard deviation over the seeds. A method whose loss is not finite is left out.

    Raises:
        ValueError: there is no line with a finite loss.
    """
    from matplotlib.figure import Figure

    lines = [line for line in lines if math.isfinite(line.test)]
    if not lines:
        raise ValueError("there is nothing to draw: give at least one line with a finite loss")
    figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
    axis = figure.subplots()
    for name, (colour, marker, methods) in FAMILIES.items():
        own = [line for line in lines if line.method in methods]
        if own:
            x, y = [line.sent_per_sample for line in own], [line.test for line in own]
            axis.plot(x, y, color=colour, marker=marker, markersize=7, linestyle="", label=name)
            for line in own:  # lines, and not error bars, because names keep clear of lines
                low, high = line.test - (line.spread or 0), line.test + (line.spread or 0)
                axis.plot([line.sent_per_sample] * 2, [low, high], color=colour, linewidth=1.5)
    axis.set_xscale("log")
    sent = [line.sent_per_sample for line in lines]
    axis.set_xlim(min(sent) / 2, max(sent) * 3)
    axis.margins(y=0.12)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f} B")
    axis.set_xlabel("sent by a rank for a sample", fontsize=TEXT)
    axis.set_ylabel("loss on the test part, nats", fontsize=TEXT)
    plain_axes(axis)
    figure.legend(loc="outside lower center", ncols=2, fontsize=TEXT, frameon=False)
    names = [line.title.removeprefix("decentralised, ") for line in lines]  # the legend names the family
    points = [(name, x.sent_per_sample, x.test) for name, x in zip(names, lines, strict=True)]
    place_labels(axis, points)
    return render(figure, alt or "Loss on the test part over bytes for a sample: " + _said(lines))


def _said(lines: Sequence[Line]) -> str:
    by_loss = sorted(lines, key=lambda line: line.test)
    return ", ".join(f"{x.title} {x.test:.2f} with {x.sent_per_sample:,.0f} B" for x in by_loss) + "."
