"""Chapter 13's pictures: the pieces of a layer as dominoes, and the link that pays for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulator.inputs.galaxy import PLACEMENTS, STEPS, placement_of_blocks
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.planner.layer_split import even_layer, plan_layer
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, bare

NAMES = {"attention": "attention", "connection_1": "connection", "mlp": "MLP", "connection_2": "connection"}
LAYOUTS = {"whole": "#a9cbe8", "part": "#8fb99f", "sum": "#e8c547"}
GAP = 0.5  # between two dominoes, each of which is 1 wide
BESIDE = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": TEXT}

Way = str | Mapping[str, str]


def conversions(way: Way) -> list[str]:
    """What stands behind each of the four pieces in forward; "" where the layouts fit.

    >>> conversions("galaxy")
    ['reduce-scatter', 'all-gather', 'reduce-scatter', 'all-gather']
    """
    dominoes = _dominoes(way)
    pairs = zip(dominoes, dominoes[1:] + dominoes[:1], strict=True)
    return [STEPS.get((result, read), "") for (_, result), (read, _) in pairs]


def _dominoes(way: Way) -> list[tuple[str, str]]:
    return [PLACEMENTS[placed][:2] for placed in placement_of_blocks(way).values()]


def plot_dominoes(ways: Mapping[str, Way]) -> Picture:
    """A row for each way: on a piece's left half the layout that it reads, on its right half that of its result.

    Args:
        ways: title -> a name of ``simulator.inputs.galaxy.WAYS``, or a placement for each of its blocks.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(WIDTH, 1.45 * len(ways)), layout="constrained")
    told = []
    for axis, (title, way) in zip(figure.subplots(len(ways), squeeze=False)[:, 0], ways.items(), strict=True):
        dominoes, between = _dominoes(way), conversions(way)
        for i, (name, halves) in enumerate(
            zip([*NAMES.values(), ""], [*dominoes, dominoes[0][:1]], strict=True)
        ):
            left = i * (1 + GAP)
            for j, layout in enumerate(halves):
                half = Rectangle((left + j / 2, 0), 0.5, 1, facecolor=LAYOUTS[layout], edgecolor="#444444")
                axis.add_patch(half)
                axis.text(left + j / 2 + 0.25, 0.5, layout, ha="center", va="center", fontsize=TEXT)
            axis.text(
                left + 0.25 if not name else left + 0.5, 1.15, name or "next", ha="center", fontsize=TEXT
            )
            if name:
                step = between[i].replace("-", "-\n", 1) or "fits"
                middle = left + 1 + GAP / 2
                axis.annotate("", (left + 1 + GAP, 0.5), (left + 1, 0.5), arrowprops={"arrowstyle": "->"})
                axis.text(middle, -0.15, step, ha="center", va="top", fontsize=TEXT, linespacing=1)
        axis.set_title(title, loc="left", fontsize=TITLE)
        axis.set(xlim=(-0.1, 4 * (1 + GAP) + 0.6), ylim=(-1.0, 1.5))
        axis.set_axis_off()
        pieces = zip(NAMES.values(), dominoes, between, strict=True)
        told.append(
            f"{title}: " + ", ".join(f"{n} from {r} to {s}, then {c or 'nothing'}" for n, (r, s), c in pieces)
        )
    return render(figure, "; ".join(told) + ".")


def break_even(
    shape: ModelShape, device: Hardware, slowness: float, batch: int = 1, way: Way = "galaxy"
) -> float:
    """Bytes a second that a link must carry, so that a device and a helper take as long as the device alone."""
    plan, device = Plan(precision="fp32", micro_batch=batch), replace(device, memory=float("inf"))
    alone = even_layer(shape, [device], "tp", plan=plan).seconds
    bandwidth = device.node.bandwidth
    for _ in range(3):  # with another link another split may be the best
        link = replace(device.node, bandwidth=bandwidth, latency=0.0)
        pair = [replace(one, node=link) for one in (device, device.slowed(slowness))]
        split = plan_layer(shape, pair, way, plan=plan)
        saved = alone - sum(split.parts.values())
        if saved <= 0:
            return float("inf")
        bandwidth *= sum(split.communication.values()) / saved
    return bandwidth * device.node.efficiency


def plot_break_even(needed: Mapping[str, float], links: Mapping[str, float]) -> Picture:
    """From which bandwidth on a helper helps, beside what links carry.

    Args:
        needed: case -> bytes a second.
        links: name -> bytes a second; each is a dashed line.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 1.3 + 0.42 * len(needed)), layout="constrained")
    axis = figure.subplots()
    most = 3 * max(*needed.values(), *links.values())
    for row, bandwidth in enumerate(needed.values()):
        axis.barh(row, most - bandwidth, left=bandwidth, height=0.5, color=LAYOUTS["part"])
        axis.annotate(f"{bandwidth / 1e9:.2f} GB/s", (bandwidth, row), **BESIDE)
    for name, bandwidth in links.items():
        axis.axvline(bandwidth, color="#444444", linestyle="--", linewidth=1)
        axis.text(bandwidth, -0.65, name.replace(" ", "\n", 1), ha="center", va="bottom", fontsize=TEXT)
    axis.set_xscale("log")
    axis.set(xlim=(min(links.values()) / 2, most), ylim=(len(needed) - 0.5, -0.6))
    axis.set_yticks(range(len(needed)), list(needed), fontsize=TEXT)
    axis.set_xticks([1e7, 1e8, 1e9], ["0.01", "0.1", "1"])
    axis.minorticks_off()
    axis.set_xlabel(
        "what the link carries, GB/s; green: the pair is faster than your laptop alone", fontsize=TEXT
    )
    bare(axis)
    cases = ", ".join(f"{case} {bandwidth / 1e9:.2f} GB/s" for case, bandwidth in needed.items())
    return render(figure, f"The pair is faster from these bandwidths on: {cases}.")
