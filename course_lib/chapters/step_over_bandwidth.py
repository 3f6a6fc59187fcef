"""The drawing of a step's time over the bandwidth of the link: the lowest line is the method to choose there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from course_lib.chapters.all_reduce_times import TIMES
from simulator.inputs.checks import not_negative, positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

# Told apart by lightness and by the shape of the line as well. The first one is drawn wide, below the others.
LOOKS = (
    ("#b4b4b4", 6.0, "-"),
    ("#cc6a26", 2.0, "-"),
    ("#143f70", 1.8, "--"),
    ("#23614a", 1.8, "-."),
    ("#7d5ba6", 1.8, ":"),
    ("#222222", 1.2, "-"),
)
BANDWIDTHS = {
    10.0**e: f"{10 ** (e % 3)} {unit}/s"
    for e, unit in zip(range(3, 12), 3 * ["kB"] + 3 * ["MB"] + 3 * ["GB"], strict=True)
}
SOLD_AS = {
    125e4: "10 Mbit/s",
    125e5: "100 Mbit/s",
    125e6: "1 Gbit/s",
    125e7: "10 Gbit/s",
    125e8: "100 Gbit/s",
}


def plot_step_over_bandwidth(
    bandwidths: Sequence[float],
    steps: Mapping[str, Callable[[float], float]],
    mark: float | None = None,
    alt: str | None = None,
) -> Picture:
    """Seconds of a step over the bytes a second of the link, one line for each method; both axes are logarithmic.

    The axis at the top has the bits a second by which networks are named.

    Args:
        bandwidths: growing, bytes a second.
        steps: method -> seconds of a step at a bandwidth.
        mark: a bandwidth at which a line is drawn, with a dot for the second method's step.
        alt: the sentence that says what is seen; by default what is drawn.

    Raises:
        ValueError: fewer than two bandwidths, or they do not grow; no method, or more than can be told apart.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    for bandwidth in bandwidths:
        positive(bandwidth=bandwidth)
    if len(bandwidths) < 2 or sorted(set(bandwidths)) != list(bandwidths):
        raise ValueError(f"bandwidths must be at least two growing numbers, not {list(bandwidths)}")
    if not 1 <= len(steps) <= len(LOOKS):
        raise ValueError(f"{len(steps)} methods cannot be drawn; give 1 to {len(LOOKS)}")
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    axis = figure.subplots()
    for (name, seconds), (colour, width, line) in zip(steps.items(), LOOKS, strict=False):
        values = [seconds(bandwidth) for bandwidth in bandwidths]
        for value in values:
            not_negative(seconds=value)
        axis.plot(bandwidths, values, line, color=colour, linewidth=width, label=name)
    if mark is not None:
        axis.axvline(mark, color="#888888", linewidth=0.8)
        axis.plot(
            mark, list(steps.values())[min(1, len(steps) - 1)](mark), "o", color=LOOKS[1][0], markersize=9
        )
    axis.set(xscale="log", yscale="log")
    axis.set_xlabel("bandwidth of the link", fontsize=TEXT, loc="right")
    axis.set_ylabel("time of a step", fontsize=TEXT)
    ticks = [tick for tick in BANDWIDTHS if bandwidths[0] <= tick <= bandwidths[-1]]
    axis.set_xticks(ticks, [BANDWIDTHS[tick] for tick in ticks])
    named = [b for b in SOLD_AS if bandwidths[0] <= b <= bandwidths[-1]]
    top = axis.secondary_xaxis("top")
    top.set_xticks(named, [SOLD_AS[b] for b in named], fontsize=TEXT)
    top.xaxis.set_minor_locator(NullLocator())
    low, high = axis.get_ylim()
    times = [time for time in TIMES if low <= time <= high]
    axis.set_yticks(times, [TIMES[time] for time in times])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_locator(NullLocator())
    plain_axes(axis)
    axis.legend(frameon=False, fontsize=TEXT)
    return render(figure, alt or f"Time of a step over the bandwidth of the link: {', '.join(steps)}.")
