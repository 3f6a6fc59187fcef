"""The drawing of the memory that a step of FSDP takes besides the states (chapter 07)."""

from __future__ import annotations

from simulator.inputs.checks import positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, bare, human, ticks_in

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
    label = f" weights, gradients and Adam's states: {human(states)}"
    axis.text(1, 0, label, va="center", fontsize=TEXT)
    note = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "fontsize": TEXT}
    axis.annotate(f"{needed / 1e9:.0f} GB\nof what?", ((states + needed) / 1e9, 1), **note)
    axis.axvline(capacity / 1e9, color="#222222", linestyle="--", linewidth=1)
    end = 1.15 * (states + needed) / 1e9
    axis.set_title(f"{human(capacity)}, {device}", x=capacity / 1e9 / end, fontsize=TEXT)
    axis.set_xlim(0, end)
    axis.xaxis.set_major_formatter(FuncFormatter(ticks_in("GB")))
    axis.set_yticks((0, 1), ["states", "in a step"])
    axis.invert_yaxis()
    bare(axis)
    said = f"{human(states)} of states, {human(needed)} more in a step"
    return render(figure, f"Memory of a GPU: {said}; {device} has {human(capacity)}.")
