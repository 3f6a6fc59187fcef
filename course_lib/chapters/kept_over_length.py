"""The drawing of what programs keep for backward over the length of a text, and where a device is full (chapter 15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from simulator.inputs.checks import positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, human, plain_axes, ticks_in

COLOURS = ("#1b3a5c", "#cc6a24", "#23614a")


def plot_kept_over_length(
    kept: Mapping[str, Mapping[int, float]], capacity: float, device: str, end: int
) -> Picture:
    """A line for each program, up to the length at which it fills the device.

    Args:
        kept: of each program, tokens -> bytes, at lengths that grow; its name is written at the line.
        capacity: bytes of memory of the device that is called ``device``.
        end: tokens at the right end of the axis.

    Raises:
        ValueError: a program never fills the device, or there are more programs than can be told apart.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    positive(capacity=capacity, end=end)
    if not 1 <= len(kept) <= len(COLOURS):
        raise ValueError(f"give 1 to {len(COLOURS)} programs, not {len(kept)}")
    full = {name: full_at(points, capacity) for name, points in kept.items()}
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axis = figure.subplots()
    axis.axhline(capacity / 1e9, color="#222222", linestyle="--", linewidth=1)
    axis.set_title(f"{human(capacity)}, {device}", loc="left", fontsize=TEXT)
    for (name, points), colour in zip(kept.items(), COLOURS, strict=False):
        tokens = [t for t in points if t < full[name]]
        line = [0, *(points[t] / 1e9 for t in tokens), capacity / 1e9]
        axis.plot([0, *tokens, full[name]], line, color=colour, linewidth=2.2)
        axis.plot(full[name], capacity / 1e9, "X", color=colour, markersize=9)
        left = full[name] < end / 2
        side = {"xytext": (8 if left else -4, 0), "ha": "left" if left else "right", "color": colour}
        words = f"{name}:\nfull at {round(full[name], -2):,.0f} tokens"
        where = (full[name], capacity / 2e9)
        axis.annotate(words, where, textcoords="offset points", va="top", fontsize=TEXT, **side)
    axis.set(xlim=(0, end), ylim=(0, 1.05 * capacity / 1e9))
    ticks = [end // 4 * n for n in range(5)]
    axis.set_xticks(ticks, [f"{t:,}" for t in ticks])
    axis.set_xlabel("tokens of a text", fontsize=TEXT, loc="right")
    axis.set_ylabel("kept for backward", fontsize=TEXT)
    axis.yaxis.set_major_formatter(FuncFormatter(ticks_in("GB")))
    plain_axes(axis)
    said = "; ".join(f"{name} at {round(t, -2):,.0f} tokens" for name, t in full.items())
    return render(figure, f"Kept for backward over the length of a text. {human(capacity)} are full: {said}.")


def full_at(points: Mapping[int, float], capacity: float) -> float:
    """Tokens at which the bytes reach the capacity, on a straight line between two given lengths.

    Raises:
        ValueError: they never do.
    """
    lengths: Sequence[tuple[int, float]] = [(0, 0.0), *points.items()]
    for (before, low), (after, high) in pairwise(lengths):
        if low < capacity <= high:
            return before + (after - before) * (capacity - low) / (high - low)
    raise ValueError(f"a program never fills {human(capacity)}: give longer texts")
