"""Chapter 08's puzzles: the measured memory of a step, coloured by what runs again in the block that is under way, and
a point for each try."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, bare, human, ticks_in

WHOLE, MLP, NOTHING, OUTSIDE = "#1b3a5c", "#cc6a24", "#bbbbbb", "#222222"
PALE = {WHOLE: "#a9bacd", MLP: "#ecc3a2"}  # in forward
BLOCK = r"blocks\.(\d+)"  # its number in a label
COLOURS = {"runs again whole": WHOLE, "its MLP runs again": MLP, "runs once": NOTHING, "logits": OUTSIDE}


class Try(NamedTuple):
    """A step, moment by moment: what was done (``"backward blocks.3.mlp"``), and the bytes that were alive."""

    title: str
    labels: Sequence[str]
    held: list[float]
    whole: Collection[int]  # the numbers of the blocks that run again
    mlps: Collection[int]  # and of those whose MLP alone does
    more: float = 0.0  # % longer


def plot_tries(
    tries: Sequence[Try],
    budget: float,
    limit: float | None = None,
    every: Sequence[Try] = (),
    known: Mapping[str, tuple[float, float]] | None = None,
) -> Picture:
    """The steps beside each other, to one scale, under a line at ``budget`` bytes: pale in forward.

    Args:
        tries: the steps.
        budget: the bytes that a step may take.
        limit, every: with ``limit``, the most % longer, a last panel has a point for each of these steps.
        known: the name of a step -> its % longer and its bytes, as points that are named.
    """
    from matplotlib.figure import Figure
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    panels = len(tries) + (limit is not None)
    axes = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
    top = max(1.5 * budget, *(1.15 * max(one.held) for one in tries)) / 1e6
    alt = []
    for axis, one in zip(axes, tries, strict=False):
        colours = [_colour(label, one) for label in one.labels]
        axis.bar(range(len(one.held)), [held / 1e6 for held in one.held], 1.15, color=colours, lw=0)
        axis.axhline(budget / 1e6, color="#222222", linestyle="--", linewidth=1)
        begin = next(i for i, label in enumerate(one.labels) if label.startswith("backward"))
        axis.set_xticks(*_numbers(one.labels, begin))
        axis.set(xlim=(0, len(one.labels)), ylim=(0, top))
        axis.set_xlabel("blocks: forward, then backward", fontsize=TEXT)
        axis.set_title(one.title, loc="left", fontsize=TITLE)
        bare(axis)
        peak = max(one.held)
        over = max(peak, budget) if peak > 0.85 * budget else peak  # the words do not stand on the line
        place = (one.held.index(peak), over / 1e6)
        said = f"{human(peak)}: {'fits' if peak <= budget else 'does not fit'}"
        axis.annotate(said, place, (0, 2), textcoords="offset points", ha="center", fontsize=TEXT)
        alt.append(
            f"{one.title}: the peak is {human(peak)}, {'under' if peak <= budget else 'over'} the line"
        )
    if limit is not None:
        tried = [(one.more, max(one.held)) for one in every]
        _points(axes[-1], tried, budget, limit, known or {})
        axes[-1].set(xlim=(0, 3 * limit), xlabel="% longer", ylabel="peak")
        axes[-1].tick_params(labelleft=True)
        axes[-1].set_title("all that you tried", loc="left", fontsize=TITLE)
        alt.append(f"points for {len(every)} tries and {', '.join(known or {})}: the peak over % longer")
    axes[0].set_ylabel("activations", fontsize=TEXT)
    axes[0].yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes[0].yaxis.set_major_formatter(FuncFormatter(ticks_in("MB")))
    patches = [
        *(Patch(color=colour) for colour in COLOURS.values()),
        tuple(Patch(color=pale) for pale in PALE.values()),
    ]
    figure.legend(
        patches,
        [*COLOURS, "pale: in forward"],
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
        loc="outside lower center",
        ncols=5,
        fontsize=TEXT,
        frameon=False,
        columnspacing=1.1,
        handlelength=1.2,
    )
    return render(figure, f"Memory over a step, and a line at {human(budget)}. {'; '.join(alt)}.")


def _colour(label: str, one: Try) -> str:
    block = re.search(BLOCK, label)
    if not block:
        return OUTSIDE
    number = int(block[1])
    colour = WHOLE if number in one.whole else MLP if number in one.mlps else NOTHING
    return PALE.get(colour, colour) if label.startswith("forward") else colour


def _numbers(labels: Sequence[str], begin: int) -> tuple[list[float], list[str]]:
    """Where each block runs, in the middle of its moments, and its number: in forward, and again in backward."""
    moments: dict[tuple[bool, str], list[int]] = {}
    for moment, label in enumerate(labels):
        if block := re.search(BLOCK, label):
            moments.setdefault((moment >= begin, block[1]), []).append(moment)
    return [fmean(every) for every in moments.values()], [number for _, number in moments]


def plot_points(
    tried: Sequence[tuple[float, float]],
    budget: float,
    limit: float,
    known: Mapping[str, tuple[float, float]],
) -> Picture:
    """All that was tried on a large model, as points: % longer to the right, bytes on a GPU upwards.

    Args:
        tried: % and bytes of each try; the last one is named.
        budget, limit: the most bytes and the most %, the corner that fits.
        known: a name -> its % and bytes.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    axis = figure.subplots()
    _points(axis, tried, budget, limit, known, one=1e9)
    top = max(held for _, held in (*tried, *known.values()))
    axis.set(xlim=(0, 2 * limit), ylim=(0, 1.15 * top / 1e9), xlabel="% longer", ylabel="on a GPU")
    axis.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axis.yaxis.set_major_formatter(FuncFormatter(ticks_in("GB")))
    said = "; ".join(f"{name} {human(held)}, {more:.1f} %" for name, (more, held) in known.items())
    return render(figure, f"Memory on a GPU over % longer: points for {len(tried)} tries; {said}.")


def _points(axis, tried, budget, limit, known, one=1e6) -> None:
    """What each try takes: % to the right, bytes upwards; the corner that fits is grey."""
    axis.fill_between([0, limit], 0, budget / one, color="#eeeeee", lw=0)
    axis.text(limit / 2, budget / (4 * one), "fits", ha="center", fontsize=TEXT)
    for name, (more, held) in known.items():
        inside = more <= limit and held <= budget  # its name stands in the corner, too
        axis.plot(more, held / one, "o", color=WHOLE if inside else NOTHING)
        offset, align = ((-6, -12), "right") if inside else ((5, 3), "left")
        axis.annotate(name, (more, held / one), offset, textcoords="offset points", ha=align, fontsize=TEXT)
    for more, held in tried:
        axis.plot(more, held / one, "o", color=OUTSIDE)
    if tried:
        more, held = tried[-1]
        axis.annotate("yours", (more, held / one), (5, 3), textcoords="offset points", fontsize=TEXT)
    axis.xaxis.label.set_size(TEXT)
    axis.yaxis.label.set_size(TEXT)
    bare(axis)
