"""Chapter 13: from which link on a slow helper helps, and the picture of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.planner.layer_split import even_layer, plan_layer
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, bare

PAYS = "#8fb99f"
BESIDE = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": TEXT}


def break_even(shape: ModelShape, device: Hardware, slowness: float, batch: int = 1) -> float:
    """Bytes a second that a link must carry, so that a device and a helper take as long as the device alone."""
    plan, device = Plan(precision="fp32", micro_batch=batch), replace(device, memory=float("inf"))
    alone = even_layer(shape, [device], "tp", plan=plan).seconds
    bandwidth = device.node.bandwidth
    for _ in range(3):  # with another link another split may be the best
        link = replace(device.node, bandwidth=bandwidth, latency=0.0)
        pair = [replace(one, node=link) for one in (device, device.slowed(slowness))]
        split = plan_layer(shape, pair, "galaxy", plan=plan)
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
        axis.barh(row, most - bandwidth, left=bandwidth, height=0.5, color=PAYS)
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
