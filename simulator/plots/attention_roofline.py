"""The drawing of rooflines: what rate each device can reach with so many operations for a byte of its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.inputs.checks import positive
from simulator.inputs.hardware import Hardware
from simulator.inputs.known_devices import find_device
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

# Told apart by lightness and by the stroke. H100 and H200 share the flat part, so the second is drawn narrow over the
# wide first.
LOOKS = (
    ("#e0a030", 1.8, ":"),
    ("#cc6a26", 1.8, "--"),
    ("#9cc9ee", 5.0, "-"),
    ("#2d6ca5", 1.6, "-"),
    ("#0d2747", 1.8, "-."),
)
DEVICES = ("v100", "a100-80gb", "h100", "h200", "b200")


def plot_attention_roofline(
    intensities: Mapping[str, float], devices: Sequence[str] = DEVICES, *, alt: str | None = None
) -> Picture:
    """FLOP/s that a device can reach over FLOP per byte: on the slope its memory sets the pace, on the flat its
    arithmetic does. A vertical line stands for each way to compute attention, with a dot on every roof.

    Args:
        intensities: name -> FLOP for each byte between the device's memory and its processors, as
            ``attention_flops`` and ``total_bytes`` of ``simulator.predict.attention_io`` give them.
        devices: names of known devices, or files (``find_device``), at most five.
        alt: the sentence that says what is seen; by default one with the numbers.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    if not intensities:
        raise ValueError("there is nothing to draw: give at least one name with its FLOP per byte")
    if not 1 <= len(devices) <= len(LOOKS):
        raise ValueError(f"between 1 and {len(LOOKS)} devices can be told apart, not {len(devices)}")
    for intensity in intensities.values():
        positive(each_intensity=intensity)
    known = [find_device(name) for name in devices]
    ridges = [device.peak_flops / device.memory_bandwidth for device in known]
    low = min(*intensities.values(), *ridges) / 4
    high = max(*intensities.values(), *ridges) * 4
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    axis = figure.subplots()
    for device, ridge, (colour, width, stroke) in zip(known, ridges, LOOKS, strict=False):
        roof = [low * device.memory_bandwidth, device.peak_flops, device.peak_flops]
        axis.plot([low, ridge, high], roof, stroke, color=colour, linewidth=width, label=device.name.upper())
        for intensity in intensities.values():
            axis.plot(
                intensity,
                reached(device, intensity),
                "o",
                color=colour,
                markersize=6,
                markeredgecolor="#1a1a1a",
            )
    axis.set(xscale="log", yscale="log", xlim=(low, high))
    bottom, _ = axis.get_ylim()
    axis.set_ylim(bottom / 1.5 ** len(intensities))  # room for the names, one below the other
    for place, (name, intensity) in enumerate(sorted(intensities.items(), key=lambda item: item[1])):
        axis.axvline(intensity, color="#8a8a8a", linewidth=1, zorder=0)
        on_the_left = intensity**2 > low * high  # in the right half
        axis.annotate(
            f"{name}: {intensity:,.0f}",
            (intensity, 0.02 + 0.075 * place),
            xycoords=("data", "axes fraction"),
            xytext=(-4 if on_the_left else 4, 0),
            textcoords="offset points",
            ha="right" if on_the_left else "left",
            fontsize=TEXT,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    axis.set_xlabel("FLOP per byte moved to or from the device's memory", fontsize=TEXT, loc="right")
    axis.set_ylabel("16-bit TFLOP/s that can be reached", fontsize=TEXT)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e12:,g}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_locator(NullLocator())
    plain_axes(axis)
    figure.legend(frameon=False, fontsize=TEXT, loc="outside lower center", ncols=len(devices))
    return render(figure, alt or _sentence(known, intensities))


def reached(device: Hardware, intensity: float) -> float:
    """FLOP/s: the memory's rate times the operations for a byte, and never more than the peak."""
    positive(intensity=intensity)
    return min(device.peak_flops, device.memory_bandwidth * intensity)


def _sentence(devices: Sequence[Hardware], intensities: Mapping[str, float]) -> str:
    rates = [
        f"{name} ({intensity:,.0f} FLOP per byte) "
        + ", ".join(f"{reached(d, intensity) / 1e12:,.0f} on {d.name.upper()}" for d in devices)
        for name, intensity in intensities.items()
    ]
    return f"TFLOP/s that attention can reach: {'; '.join(rates)}."
