"""A step of each stage of ZeRO on one time line: what computes, what is sent, and what of it hides (chapter 06)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course_lib.chapters.zero_seconds import (
    COMPUTING,
    LLAMA,
    STAGES,
    Cluster,
    Step,
    box,
    fewest_passes,
    named,
    quickest,
)
from course_lib.chapters.zero_step import COLOURS
from simulator.inputs.known_models import MODELS
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, bare

LIGHTER = "#8a8a8a"


def weighed(cluster: Cluster) -> str:
    size = 2 * MODELS[cluster.model].parameters / 1e9
    sent = f"{cluster.gpus - 1}/{cluster.gpus} × {size:.0f} GB"
    return f"{sent} ÷ {cluster.speed:g} GB/s = {cluster.half:.2f} s"


def time_alone(gpu: str, speed: float) -> str:
    """The seconds of one half, and of each plan's computing, before anything hides."""
    cluster = Cluster(gpu, speed)
    lines = [f"one half: {weighed(cluster)}"]
    for one in fewest_passes(cluster):
        lines.append(f"computing, {named(one.stage, one.passes)}: {one.computing:.2f} s")
    return "\n".join(lines)


def plot_timeline(
    gpu: str,
    speed: float,
    stages: Sequence[int] = STAGES,
    *,
    gpus: int = 64,
    sequences: int = 4,
    model: str = LLAMA,
) -> Picture:
    """A step of these stages in the fewest passes that fit: weights come before what computes with them.

    Args:
        gpu, speed, gpus, sequences, model: see ``Cluster``.
    """
    from matplotlib.figure import Figure

    cluster = Cluster(gpu, speed, gpus, sequences, model)
    steps = [one for one in fewest_passes(cluster) if one.stage in stages]
    best = quickest(cluster) if len(steps) > 1 else None
    figure = Figure(figsize=(WIDTH, 0.7 + 1.0 * len(steps)), layout="constrained")
    axis, told = figure.subplots(), []
    longest = max((one.seconds for one in steps if one.fits), default=1)
    first = [one for one in steps if one.fits and best and one.seconds < 1.01 * best.seconds]
    for row, one in enumerate(steps):
        name = named(one.stage, one.passes)
        if not one.fits:
            axis.text(0, row, "no room for one sequence", va="center", fontsize=TEXT)
            told.append(f"{name}: no room")
            continue
        draw_line(axis, row, one, longest)
        axis.text(0, row + 0.45, parts(one), va="center", fontsize=TEXT)
        axis.annotate(f"{one.seconds:.2f} s", (one.seconds, row), (6, 0), textcoords="offset points",
                      va="center", fontsize=TEXT, fontweight="bold" if one in first else "normal")  # fmt: skip
        end = ", the shortest" if first == [one] else ", a tie" if one in first else ""
        told.append(f"{name}: {parts(one)} = {one.seconds:.2f} s{end}")
    axis.set(xlim=(0, 1.1 * longest), ylim=(-0.35, len(steps) - 0.35), xticks=[])
    rows = [named(one.stage, one.passes).replace(", ", ",\n") for one in steps]
    axis.set_yticks(range(len(steps)), rows, fontsize=TEXT)
    axis.tick_params(length=0)
    axis.invert_yaxis()
    bare(axis)
    axis.spines["bottom"].set_visible(False)
    key = "grey: forward; black: backward, update; colour: a half; hatched: its hidden part"
    key += "\nbold: a tie, within 1 %" * (len(first) > 1)
    figure.supxlabel(f"predicted; {key}", fontsize=TEXT)
    said = f"{gpus} {gpu}s, sequences on each: {sequences}; a half: {weighed(cluster)}"
    axis.set_title(said, fontsize=TEXT, loc="left")
    return render(figure, f"{said}. {'; '.join(told)}.")


def parts(one: Step) -> str:
    return f"{one.computing:.2f} s computing + {one.halves} × {one.half:.2f} s − {one.hidden:.2f} s hidden"


def draw_line(axis: Any, row: int, found: Step, longest: float) -> None:
    """The passes of a step with their halves, from the left; ``longest`` is the axis's length in seconds."""
    now, colour, half = 0.0, COLOURS[f"stage {found.stage}"], found.half

    def computes(seconds: float, shade: str) -> None:
        nonlocal now
        axis.barh(row - 0.18, seconds, 0.22, left=now, color=shade, edgecolor="white", linewidth=0.7)
        now += seconds

    def sends(hidden: float, said: str, before: bool) -> None:
        nonlocal now
        shown = half - hidden
        seen, beside = (now, now + shown) if before else (now, now - hidden)
        box(axis, (seen, shown), row + 0.14, colour, height=0.4)
        box(axis, (beside, hidden), row + 0.14, colour, height=0.4, hatched=True)
        ink, middle = "black" if found.stage == 2 else "white", (seen + shown / 2, row + 0.14)
        if shown > 0.16 * longest:
            axis.text(*middle, said, ha="center", va="center", color=ink, fontsize=TEXT)
        now += shown

    for ahead, back in found.messages():
        if ahead:
            sends(found.hides(1, found.forward), "gather weights\nfor forward", before=True)
        computes(found.forward, LIGHTER)
        hidden = found.hides(back, found.backward) / max(1, back)
        if back > 1:  # weights before gradients
            sends(hidden, "gather weights\nfor backward", before=True)
        computes(found.backward, COMPUTING)
        if back:
            sends(hidden, "reduce-scatter\ngradients", before=False)
    computes(found.update, COMPUTING)
