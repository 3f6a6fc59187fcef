"""The roofline of devices: how fast work can run, by how many FLOPs it has for each byte that it moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.inputs.checks import positive
from simulator.inputs.hardware import Hardware
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

COLOURS = ("#a9a9a9", "#4a86ba", "#143f70", "#e0a030", "#cc6a24", "#7d5ba6")


def plot_roofline(devices: Sequence[Hardware], work: Mapping[str, float], alt: str | None = None) -> Picture:
    """One line a device: it rises while work waits for memory, and is flat where arithmetic is the limit.

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
            linewidth=1.8,
            label=device.name,
        )
    for name, intensity in work.items():
        axis.axvline(intensity, color="#222222", linewidth=1, linestyle="--")
        axis.annotate(
            name,
            (intensity, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            va="bottom",
            fontsize=TEXT,
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
