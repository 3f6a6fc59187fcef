"""The roofline of devices: how fast work can run, by how many FLOPs it has for each byte that it moves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from simulator.inputs.checks import positive
from simulator.inputs.hardware import Hardware
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

ROOM = 280.0  # points that the axes have from left to right, about: the rest is the legend's
COLOURS = ("#a9a9a9", "#4a86ba", "#143f70", "#e0a030", "#cc6a24", "#7d5ba6")


def plot_roofline(devices: Sequence[Hardware], work: Mapping[str, float], alt: str | None = None) -> Picture:
    """One line a device: it rises while work waits for memory, and is flat where arithmetic is the limit.

    Where devices are equally fast, the line of an earlier one is drawn wider, so that a later one does not hide it.
    Both limits are those that the makers print, of 16-bit matrix products and of the memory (Williams, Waterman and
    Patterson, 2009, https://doi.org/10.1145/1498765.1498785).

    Args:
        devices: from the slowest to the fastest.
        work: FLOPs for each byte of memory traffic, by name; drawn as vertical lines.
        alt: the sentence that says what is seen; by default where each device's line bends.

    Raises:
        ValueError: there is no device, or FLOPs a byte are not a number above 0.
    """
    from matplotlib.figure import Figure

    if not devices:
        raise ValueError("there is nothing to draw: give at least one device")
    for intensity in work.values():
        positive(flops_per_byte=intensity)
    bends = {device.name: device.peak_flops / device.memory_bandwidth for device in devices}
    every = [*bends.values(), *work.values()]
    low, high = min(every) / 4, 4 * max(every)
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    axis = figure.subplots()
    for i, device in enumerate(devices):
        bend, top = bends[device.name], device.peak_flops / 1e12
        colour = COLOURS[i % len(COLOURS)]
        axis.plot(
            [low, bend, high],
            [low * device.memory_bandwidth / 1e12, top, top],
            color=colour,
            linewidth=1.8 + 2.4 * sum(_covers(device, later) for later in devices[i + 1 :]),
            label=device.name,
        )
    raised = _raised(work, math.log(high / low))
    for name, intensity in work.items():
        axis.axvline(intensity, color="#222222", linewidth=1, linestyle="--")
        axis.annotate(
            name,
            (intensity, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(4, raised[name] * 1.3 * TEXT),
            textcoords="offset points",
            va="bottom",
            fontsize=TEXT,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},  # over the line of the next name
        )
    axis.set(xscale="log", yscale="log", xlim=(low, high))
    axis.set_xlabel("FLOPs for each byte moved", fontsize=TEXT)
    axis.set_ylabel("TFLOP/s at most", fontsize=TEXT)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    plain_axes(axis)
    figure.legend(loc="outside right upper", fontsize=TEXT, frameon=False, handlelength=1.2, reverse=True)
    said = ", ".join(f"{name} at {bend:.0f}" for name, bend in bends.items())
    return render(figure, alt or f"Rooflines that bend, in FLOPs for each byte: {said}.")


def _covers(device: Hardware, later: Hardware) -> bool:
    """Whether the later line would hide a part of the device's line: equal peaks, or equal bandwidths."""
    flat, rising = (
        later.peak_flops / device.peak_flops,
        later.memory_bandwidth / device.memory_bandwidth,
    )
    return min(abs(math.log(flat)), abs(math.log(rising))) < 0.05


def _raised(work: Mapping[str, float], span: float) -> dict[str, int]:
    """How many lines of text each name stands above the axis, so that it ends below the name of the next line."""
    raised: dict[str, int] = {}
    taken: list[tuple[float, int]] = []  # names to the left: where each ends, in points, and its upper edge
    for name, intensity in sorted(work.items(), key=lambda item: item[1]):
        begins, lines = ROOM * math.log(intensity) / span, name.split("\n")
        raised[name] = max((top for ends, top in taken if ends > begins), default=0)
        taken.append((begins + 4 + 0.6 * TEXT * max(map(len, lines)), raised[name] + len(lines)))
    return raised
