"""Curves over the number of GPUs: the share of the time that goes into work which is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.inputs.checks import amounts, at_least
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

STROKES = (("#143f70", "-"), ("#8f2d56", "--"), ("#cc6a26", "-"), ("#23614a", "--"), ("#7d5ba6", ":"))
APART = 8.0  # percent between two names, at least


def plot_useful_time(
    curves: Mapping[str, Sequence[float]],
    gpus: Sequence[int],
    marked: tuple[int, str] | None = None,
    alt: str | None = None,
) -> Picture:
    """One curve for each way to run, over a logarithmic axis.

    Args:
        curves: name -> the share at each number of ``gpus``, a number between 0 and 1. Each name stands at its curve's
            right end, with the share there.
        gpus: in ascending order.
        marked: a number of GPUs, and what a dotted line there says.
        alt: the sentence that says what is seen; by default the shares at both ends.

    Raises:
        ValueError: there is nothing to draw, a curve has another length, or a number is not one.
    """
    from matplotlib.figure import Figure

    if not curves or len(gpus) < 2 or any(len(shares) != len(gpus) for shares in curves.values()):
        raise ValueError(
            "there is nothing to draw: give curves of one length, with at least two numbers of GPUs"
        )
    amounts(share=[share for shares in curves.values() for share in shares])
    for count in gpus:
        at_least(1, gpus=count)
    if list(gpus) != sorted(set(gpus)):
        raise ValueError(f"gpus must be in ascending order, not {list(gpus)}")
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axis = figure.subplots()
    above = 120.0  # where the name above stands
    for i, (name, shares) in enumerate(sorted(curves.items(), key=lambda curve: -curve[1][-1])):
        colour, line = STROKES[i % len(STROKES)]
        axis.plot(gpus, [100 * share for share in shares], line, color=colour, linewidth=2)
        above = min(100 * shares[-1], above - APART)
        beside = {"xytext": (8, 0), "textcoords": "offset points", "va": "center", "fontsize": TEXT}
        axis.annotate(
            f"{name}, {100 * shares[-1]:.0f} %",
            (gpus[-1], above),
            color=colour,
            annotation_clip=False,
            **beside,
        )
    if marked:
        axis.axvline(marked[0], color="#8a8a8a", linewidth=1, linestyle=":")
        where = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "right"}
        axis.annotate(marked[1], (marked[0], 0.03), xytext=(-4, 0), fontsize=TEXT, **where)
    axis.set(xscale="log", ylim=(0, 102))
    ticks = gpus[:: 1 + len(gpus) // 8]
    axis.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axis.minorticks_off()
    axis.set_xlabel("GPUs", fontsize=TEXT, loc="right")
    axis.set_ylabel("useful time, %", fontsize=TEXT)
    plain_axes(axis)
    said = "; ".join(f"{n}: from {100 * s[0]:.0f} to {100 * s[-1]:.0f} %" for n, s in curves.items())
    return render(figure, alt or f"Useful time from {gpus[0]:,} to {gpus[-1]:,} GPUs. {said}.")
