"""Chapter 09's last picture: what each plan holds of a GPU, and how long its step takes if that fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from course_lib.chapters.layer_times import COMPUTING, SENDING
from simulator.inputs.checks import amounts, positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, bare

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FITS, TOO_BIG = "#b9b9b9", "#555555"


def plot_plans_that_fit(plans: Mapping[str, tuple[float, float, float]], capacity: float) -> Picture:
    """For each plan two bars: its memory beside a line at ``capacity``, and, if it fits, the time of its step.

    Args:
        plans: the plan -> bytes on the fullest GPU, seconds of computing, and of waiting for messages.
        capacity: bytes of one GPU.

    Raises:
        ValueError: there is nothing to draw, or an amount is below 0.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    positive(capacity=capacity)
    if not plans:
        raise ValueError("there is nothing to draw: give at least one plan")
    figure = Figure(figsize=(WIDTH, 1.25 + 0.34 * len(plans)), layout="constrained")
    memory, time = figure.subplots(1, 2, sharey=True)
    told, most = [], 0.0
    for place, (name, (held, computing, waiting)) in enumerate(plans.items()):
        amounts(plan=[held, computing, waiting])
        fits, total = held <= capacity, computing + waiting
        memory.barh(place, held / 1e9, 0.62, color=FITS if fits else TOO_BIG)
        _write(memory, 0, place, f"{held / 1e9:.0f}", "black" if fits else "white")
        if fits:
            time.barh(place, computing, 0.62, color=COMPUTING)
            time.barh(place, waiting, 0.62, computing, color=SENDING)
            most = max(most, total)
        _write(time, total if fits else 0, place, f"{total:.1f}" if fits else "does not fit")
        told.append(f"{name}: {held / 1e9:.0f} GB, {f'{total:.1f} s' if fits else 'does not fit'}")
    memory.axvline(capacity / 1e9, color="#222222", linestyle="--", linewidth=1)
    memory.set_title(f"memory, GB of {capacity / 1e9:.0f}", loc="left", fontsize=TITLE)
    memory.set_xlim(0, 1.05 * max(held for held, _, _ in plans.values()) / 1e9)
    memory.set_yticks(range(len(plans)), list(plans))
    memory.invert_yaxis()
    time.set_title("time of a step, s", loc="left", fontsize=TITLE)
    time.set_xlim(0, 1.25 * (most or 1))
    for axis in (memory, time):
        bare(axis)
    colours = {COMPUTING: "computing", SENDING: "waiting for messages"}
    handles = [Patch(facecolor=colour, label=label) for colour, label in colours.items()]
    figure.legend(
        handles=handles, loc="outside lower right", ncols=2, fontsize=TEXT, frameon=False, handlelength=1.2
    )
    return render(figure, f"Memory and time of a step of each plan. {'; '.join(told)}.")


def _write(axis: Axes, start: float, place: int, said: str, colour: str = "black") -> None:
    inwards = (4, 0)  # points
    axis.annotate(
        said, (start, place), inwards, textcoords="offset points", va="center", fontsize=TEXT, color=colour
    )
