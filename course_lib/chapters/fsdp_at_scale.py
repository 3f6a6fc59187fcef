"""The drawings of what FSDP costs on many GPUs (chapter 07): memory in a step, and tokens."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.inputs.checks import positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import (
    TEXT,
    WIDTH,
    bare,
    human,
    plain_axes,
    ticks_in,
)

POINTS = (("#cc6a26", "o"), ("#143f70", "s"), ("#23614a", "^"))  # told apart by shape as well
WITHIN, BETWEEN = "#9cc9ee", "#cc6a26"


def plot_before_and_in_step(states: float, needed: float, capacity: float, device: str) -> Picture:
    """A GPU's memory as two bars: the states alone, and with what a step needs besides, which is not said.

    Args:
        states: bytes of parameters, gradients and optimizer states.
        needed: bytes of everything else in a step.
        capacity: bytes of memory of the device that is called ``device``.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    positive(states=states, needed=needed, capacity=capacity)
    figure = Figure(figsize=(WIDTH, 1.8), layout="constrained")
    axis = figure.subplots()
    axis.barh((0, 1), states / 1e9, 0.62, color=WITHIN)
    axis.barh(1, needed / 1e9, 0.62, states / 1e9, color="#f6d6b8", edgecolor=BETWEEN, hatch="///")
    axis.text(1, 0, " weights, gradients and Adam's states", va="center", fontsize=TEXT)
    note = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "fontsize": TEXT}
    axis.annotate(human(states), (max(states, capacity) / 1e9, 0), **note)
    axis.annotate(f"{needed / 1e9:.0f} GB\nof what?", ((states + needed) / 1e9, 1), **note)
    axis.axvline(capacity / 1e9, color="#222222", linestyle="--", linewidth=1)
    end = 1.15 * (states + needed) / 1e9
    axis.set_title(f"{human(capacity)}, {device}", x=capacity / 1e9 / end, fontsize=TEXT)
    axis.set_xlim(0, end)
    axis.xaxis.set_major_formatter(FuncFormatter(ticks_in("GB")))
    axis.set_yticks((0, 1), ["before the step", "in the step"])
    axis.invert_yaxis()
    bare(axis)
    said = f"{human(states)} of states before the step, {human(needed)} more in the step"
    return render(figure, f"Memory of a GPU: {said}; {device} has {human(capacity)}.")


def plot_speed_over_tokens(
    measured: Mapping[str, Mapping[int, float]],
    rate: float,
    flops_per_byte: float = 8 / 6,
    labels: Mapping[int, str] | None = None,
) -> Picture:
    """Measured TFLOP/s of a GPU over its tokens in a step, and the most that one network card allows.

    Args:
        measured: of each model, tokens -> TFLOP/s.
        rate: of the card, bytes a second.
        flops_per_byte: FLOPs for each token and parameter, over the bytes sent for each parameter in a step.
        labels: of the first model, tokens -> what is said of the point, right of it.

    Raises:
        ValueError: nothing was measured, or more models than can be told apart.
    """
    from matplotlib.figure import Figure

    positive(rate=rate, flops_per_byte=flops_per_byte)
    if not 1 <= len(measured) <= len(POINTS) or not all(measured.values()):
        raise ValueError(f"give 1 to {len(POINTS)} models, each with at least one measurement")
    tokens = sorted({t for points in measured.values() for t in points})
    most = 1.1 * max(speed for points in measured.values() for speed in points.values())
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axis = figure.subplots()
    limit = [flops_per_byte * t * rate / 1e12 for t in (0, tokens[-1])]
    axis.plot((0, tokens[-1]), limit, color="#777777", linewidth=1.5)
    axis.fill_between((0, tokens[-1]), limit, 2 * limit[1], color="#f0f0f0")
    middle = 0.52 * most
    axis.annotate(
        f"faster than one network card\nallows: {rate / 1e9:.1f} GB/s",
        (0.02 * tokens[-1], middle),
        fontsize=TEXT,
    )
    for (name, points), (colour, shape) in zip(measured.items(), POINTS, strict=False):
        axis.plot(list(points), list(points.values()), shape, color=colour, markersize=7, label=name)
    first = next(iter(measured.values()))
    for t, said in (labels or {}).items():
        end = t == tokens[-1]  # no room at its right
        where = {
            "xytext": (-8 if end else 8, -4),
            "textcoords": "offset points",
            "va": "top" if not end else "center",
        }
        axis.annotate(
            said, (t, first[t]), ha="right" if end else "left", color=POINTS[0][0], fontsize=TEXT, **where
        )
    axis.set(xlim=(0, 1.05 * tokens[-1]), ylim=(0, most))
    axis.set_xticks(tokens, [f"{t:,}" for t in tokens])
    axis.set_xlabel("tokens of a GPU in a step", fontsize=TEXT, loc="right")
    axis.set_ylabel("TFLOP/s of a GPU", fontsize=TEXT)
    plain_axes(axis)
    axis.legend(frameon=False, fontsize=TEXT, loc="lower right")
    told = "; ".join(
        f"{name}: " + ", ".join(f"{speed:g} TFLOP/s at {t:,} tokens" for t, speed in sorted(points.items()))
        for name, points in measured.items()
    )
    return render(figure, f"Speed of a GPU over its tokens, and the limit of one network card. {told}.")
