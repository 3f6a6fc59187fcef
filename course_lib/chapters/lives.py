"""Chapter 20's picture: what each rank did until it was killed, or until the end."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.chapters.killed import Lives
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

COLOURS = {4: "#a9cbe8", 3: "#e8c547", 2: "#8fb99f", 1: "#c9b3d9"}  # by the number of ranks
FAILED = {
    "step": ("step that failed", "#d9705f"),
    "meets": ("meets again", "#dddddd"),
    "left out": ("meets again", "#dddddd"),
    "hangs": ("hangs", "#f3d9b1"),
}


def plot_lives(lives: Lives, kill: Mapping[int, int]) -> Picture:
    """A row for each rank and a box for each step, over time; a red box is a step that failed.

    A cross stands behind who was killed, and behind who came too late to meet the others.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 0.5 * len(lives) + 0.9), layout="constrained")
    axis, told, seen = figure.subplots(), [], {}
    end = max(one.end for life in lives for one in life)
    for name, life in enumerate(lives):
        for one in life:
            if one.loss is not None:
                what, colour = f"step of {one.ranks} ranks", COLOURS.get(one.ranks, "#eeeeee")
            else:
                what, colour = FAILED[one.what]
            seen[what] = colour
            axis.barh(
                name,
                one.end - one.start,
                left=one.start,
                height=0.7,
                color=colour,
                edgecolor="#444444",
                lw=0.7,
            )
        done = [one.step for one in life if one.loss is not None]
        told.append(
            f"rank {name}{' is killed after' if name in kill else ' ends with'} step {max(done, default=0)}"
        )
        if said := "killed" if name in kill else "left out" if life[-1].what == "left out" else "":
            axis.plot(life[-1].end + end / 80, name, "x", color="#b03a2e", ms=9, mew=3)
            axis.text(life[-1].end + end / 30, name, said, va="center", fontsize=TEXT, color="#b03a2e")
    for what, colour in seen.items():
        axis.barh(0, 0, color=colour, edgecolor="#444444", lw=0.7, label=what)
    axis.set_yticks(range(len(lives)), [f"rank {name}" for name in range(len(lives))], fontsize=TEXT)
    axis.invert_yaxis()
    axis.set_xlim(0, end * 1.12)
    axis.set_xlabel("seconds", loc="right", fontsize=TEXT)
    plain_axes(axis)
    figure.legend(
        loc="outside upper left",
        fontsize=TEXT,
        frameon=False,
        ncols=len(seen),
        columnspacing=1,
        handlelength=1,
    )
    return render(figure, "; ".join(told) + ".")
