"""A step of each stage of ZeRO on one time line: what computes, what is sent, and what of it hides (chapter 06)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course_lib.chapters.zero_seconds import (
    COMPUTING,
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
from simulator.plots.style import TEXT, TITLE, WIDTH, bare

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


def plot_timeline(gpu: str, speed: float, stages: Sequence[int] = STAGES) -> Picture:
    """A step of these stages in the fewest passes that fit: weights come before what computes with them."""
    from matplotlib.figure import Figure

    cluster = Cluster(gpu, speed)
    steps = [one for one in fewest_passes(cluster) if one.stage in stages]
    best = quickest(cluster) if len(steps) > 1 else None
    figure = Figure(figsize=(WIDTH, 0.6 + 1.0 * len(steps)), layout="constrained")
    axis, told = figure.subplots(), []
    for row, one in enumerate(steps):
        draw_line(axis, row, one)
        axis.annotate(f"{one.seconds:.2f} s", (one.seconds, row), (6, 0), textcoords="offset points",
                      va="center", fontsize=TEXT, fontweight="bold" if one == best else "normal")  # fmt: skip
        told.append(f"{named(one.stage, one.passes)} {one.seconds:.2f} s" + ", the shortest" * (one == best))
    longest = max(one.seconds for one in steps)
    axis.set(xlim=(0, 1.1 * longest), ylim=(-0.5, len(steps) - 0.5), xticks=[])
    rows = [named(one.stage, one.passes).replace(", ", ",\n") for one in steps]
    axis.set_yticks(range(len(steps)), rows, fontsize=TEXT)
    axis.invert_yaxis()
    bare(axis)
    axis.spines["bottom"].set_visible(False)
    axis.set_xlabel("colour: a half; hatched: the part of it that hides", fontsize=TEXT)
    said = f"{cluster.gpus} {gpu}s, predicted; a half: {weighed(cluster)}"
    axis.set_title(said, fontsize=TITLE, loc="left")
    return render(figure, f"{said}. {'; '.join(told)}.")


def draw_line(axis: Any, row: int, found: Step) -> None:
    """The passes of a step with their halves, from the left."""
    now, colour, half = 0.0, COLOURS[f"stage {found.stage}"], found.half
    run: list[tuple[float, str]] = []  # what computes without a wait: where it begins, and its name

    def computes(seconds: float, name: str) -> None:
        nonlocal now
        shade = LIGHTER if name == "forward" else COMPUTING
        axis.barh(row - 0.18, seconds, 0.22, left=now, color=shade, edgecolor="white", linewidth=0.7)
        run.append((now, name))
        now += seconds

    def told() -> None:
        names = list(dict.fromkeys(name for _, name in run))
        times = f"{len(run) // 2} × " if len(run) > 2 else ""
        if run:
            said, middle = times + ", ".join(names), (run[0][0] + now) / 2
            axis.text(middle, row - 0.31, said, ha="center", va="bottom", fontsize=TEXT)
        run.clear()

    def sends(hidden: float, said: str, before: bool) -> None:
        nonlocal now
        shown = half - hidden
        seen, beside = (now, now + shown) if before else (now, now - hidden)
        box(axis, (seen, shown), row + 0.14, colour, height=0.4)
        box(axis, (beside, hidden), row + 0.14, colour, height=0.4, hatched=True)
        ink = "black" if found.stage == 2 else "white"
        axis.text(seen + shown / 2, row + 0.14, said, ha="center", va="center", color=ink, fontsize=TEXT)
        now += shown

    for ahead, back in found.messages():
        if ahead:
            sends(found.hides(1, found.forward), "gather for\nthis forward", before=True)
        computes(found.forward, "forward")
        hidden = found.hides(back, found.backward) / max(1, back)
        if back > 1:  # weights before gradients
            told()
            sends(hidden, "gather for\nbackward", before=True)
        computes(found.backward, "backward")
        if back:
            told()
            sends(hidden, "reduce-scatter\ngradients", before=False)
    if found.update > 0.1:
        axis.text(
            now + found.update, row - 0.31, "accumulation, update", ha="right", va="bottom", fontsize=TEXT
        )
        axis.barh(row - 0.18, found.update, 0.22, left=now, color=COMPUTING)
