"""Chapter 13: from which link on, and from how many texts on, a slow helper helps, and the pictures of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.planner.layer_split import even_layer, plan_layer
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, bare, plain_axes

PAYS = "#8fb99f"
LINES = ("#23614a", "#143f70", "#cc6a26")  # of the fastest link first
BESIDE = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": TEXT}


def break_even(
    shape: ModelShape, device: Hardware, slowness: float, batch: int = 1, precision: str = "fp32"
) -> float:
    """Bytes a second that a link must carry, so that a device and a helper take as long as the device alone."""
    plan, device = Plan(precision=precision, micro_batch=batch), replace(device, memory=float("inf"))
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


def enough_texts(text: float, message: float, slowness: int) -> int:
    """The smallest step of texts that can be dealt ``slowness`` to 1 and takes the pair less time than one device.

    Args:
        text: seconds that a text takes the fast device.
        message: seconds of the gradients, once a step.
    """
    return (slowness + 1) * (int(message / text) + 1)


def plot_over_texts(text: float, messages: Mapping[str, float], slowness: int) -> Picture:
    """Seconds for each text over the texts of a step, where texts are dealt.

    A dot is where the pair becomes faster; a curve below that of one device from its left end on has none.

    Args:
        text, slowness: as ``enough_texts``.
        messages: link -> seconds of the gradients over it, the shortest first.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axis = figure.subplots()
    least, most, share = slowness + 1, 1000, slowness / (slowness + 1)
    texts = [least * (most / least) ** (k / 200) for k in range(201)]
    enough = {link: enough_texts(text, seconds, slowness) for link, seconds in messages.items()}
    axis.axhline(text, color="#444444", linestyle="--", linewidth=1.2)
    for colour, (link, seconds) in zip(LINES, messages.items(), strict=False):
        axis.plot(texts, [share * text + seconds / n for n in texts], color=colour, linewidth=2)
        at, how = (enough[link], share * text + seconds / enough[link]), {**BESIDE, "color": colour}
        if enough[link] == least:  # faster from its left end on: no crossing, no dot
            axis.annotate(f"over {link}, from {least} texts on", at, **{**how, "xytext": (6, -16)})
            continue
        axis.plot(*at, "o", color=colour, markersize=7, zorder=3)
        axis.annotate(f"from {enough[link]} texts on", at, **{**how, "xytext": (5, 12)})
        name_at = max(least, seconds / (1.7 - share) / text)  # where the line is 1.7 texts high
        axis.annotate(f"over {link}", (name_at, share * text + seconds / name_at), **how)
    axis.annotate("you alone", (least, text), **{**BESIDE, "xytext": (6, 8)})
    axis.axhline(share * text, color="#444444", linestyle=":", linewidth=1.2)
    below = {"xytext": (0, -9), "ha": "right"}
    axis.annotate(f"{slowness}/{least} of it", (most, share * text), **{**BESIDE, **below})
    axis.set(xscale="log", xlim=(least, most), ylim=(0, 2 * text))
    ticks = [least, 10, 100, most]
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.set_yticks([0, 0.5, 1, 1.5])
    axis.minorticks_off()
    axis.set_xlabel("texts a step", fontsize=TEXT, loc="right")
    axis.set_ylabel("seconds for each text", fontsize=TEXT)
    plain_axes(axis)
    said = ", ".join(f"over {link} from {n} texts a step on" for link, n in enough.items())
    return render(figure, f"Seconds for each text over the texts of a step. The pair is faster {said}.")
