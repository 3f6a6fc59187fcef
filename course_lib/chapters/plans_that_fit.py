"""Chapter 09's last picture: what each plan holds of a GPU, and how long its step takes if that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from course_lib.chapters.layer_times import COMPUTING, SENDING
from simulator.inputs.checks import amounts, positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, bare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HELD = {"states": "#9cc9ee", "activations": "#f0b88a", "other": "#c9c9c9"}
TIMES = {"computing": COMPUTING, "waiting for messages": SENDING}


def plot_plans_that_fit(
    plans: Mapping[str, tuple[Sequence[float], float, float]], capacity: float
) -> Picture:
    """For each plan two bars: its memory beside a line at ``capacity``, and, if it fits, the time of its step.

    Args:
        plans: the plan -> bytes on the fullest GPU (of states, activations and all other), seconds of computing, and
            of waiting for messages.
        capacity: bytes of one GPU.

    Raises:
        ValueError: there is nothing to draw, or an amount is below 0.
    """
    from matplotlib import figure as figures

    positive(capacity=capacity)
    if not plans:
        raise ValueError("there is nothing to draw: give at least one plan")
    figure = figures.Figure(figsize=(WIDTH, 1.25 + 0.34 * len(plans)), layout="constrained")
    memory, time = figure.subplots(1, 2, sharey=True)
    told, fullest, slowest = [], 0.0, 0.0
    for place, (name, (held, *seconds)) in enumerate(plans.items()):
        amounts(plan=[*held, *seconds])
        fits, total = sum(held) <= capacity, sum(seconds)
        fullest = max(fullest, sum(held) / 1e9)
        _bar(memory, place, [part / 1e9 for part in held], HELD)
        need, most = sum(held) / 1e9, capacity / 1e9
        beside = most if 0.8 * most < need <= most else need  # no number lies on the dashed line
        _write(memory, beside, place, f"{need:.0f}")
        if fits:
            _bar(time, place, seconds, TIMES)
            slowest = max(slowest, total)
        _write(time, total if fits else 0, place, f"{total:.1f}" if fits else "does not fit")
        parts = " + ".join(f"{part / 1e9:.0f}" for part in held)
        told.append(f"{name}: {parts} GB, {f'{total:.1f} s' if fits else 'does not fit'}")
    memory.axvline(capacity / 1e9, color="#222222", linestyle="--", linewidth=1)
    memory.set_title(f"memory, GB of {capacity / 1e9:.0f}", loc="left", fontsize=TITLE)
    memory.set_xlim(0, 1.2 * fullest)
    memory.set_yticks(range(len(plans)), list(plans))
    memory.invert_yaxis()
    time.set_title("time of a step, s", loc="left", fontsize=TITLE)
    time.set_xlim(0, 1.25 * (slowest or 1))
    bare(memory)
    bare(time)
    _explain(figure, HELD, "outside lower left")
    _explain(figure, TIMES, "outside lower right")
    return render(
        figure, f"Memory (states, activations, other) and time of a step of each plan. {'; '.join(told)}."
    )


def _bar(axis: Axes, place: int, parts: Sequence[float], colours: Mapping[str, str]) -> None:
    left = 0.0
    for part, colour in zip(parts, colours.values(), strict=True):
        axis.barh(place, part, 0.62, left, color=colour)
        left += part


def _explain(
    figure: Figure, colours: Mapping[str, str], place: Literal["outside lower left", "outside lower right"]
) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=label) for label, colour in colours.items()]
    figure.legend(
        handles=handles,
        loc=place,
        ncols=len(colours),
        fontsize=TEXT,
        frameon=False,
        handlelength=1.0,
        columnspacing=1.0,
    )


def _write(axis: Axes, start: float, place: int, said: str) -> None:
    right = (4, 0)  # points
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # a dashed line ends beside a number
    axis.annotate(
        said, (start, place), right, textcoords="offset points", va="center", fontsize=TEXT, bbox=paper
    )
