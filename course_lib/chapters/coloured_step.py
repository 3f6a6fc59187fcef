"""Chapter 08's puzzle: the measured memory of a step, coloured by what runs again in the block that is under way."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, bare, human, ticks_in

WHOLE, MLP, NOTHING, OUTSIDE = "#1b3a5c", "#cc6a24", "#bbbbbb", "#222222"
COLOURS = {"runs again whole": WHOLE, "its MLP runs again": MLP, "nothing again": NOTHING, "logits": OUTSIDE}


class Try(NamedTuple):
    """A step, moment by moment: what was done (``"backward blocks.3.mlp"``), and the bytes that were alive."""

    title: str
    labels: Sequence[str]
    held: list[float]
    whole: Collection[int]  # the numbers of the blocks that run again
    mlps: Collection[int]  # and of those whose MLP alone does


def plot_tries(tries: Sequence[Try], budget: float) -> Picture:
    """The steps beside each other, to one scale, under a line at ``budget`` bytes."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    axes = figure.subplots(1, len(tries), sharey=True, squeeze=False)[0]
    alt = []
    for axis, one in zip(axes, tries, strict=True):
        colours = [_colour(label, one) for label in one.labels]
        axis.bar(range(len(one.held)), [held / 1e6 for held in one.held], 1.15, color=colours, lw=0)
        axis.axhline(budget / 1e6, color="#222222", linestyle="--", linewidth=1)
        begin = next(i for i, label in enumerate(one.labels) if label.startswith("backward"))
        end = len(one.labels)
        axis.set_xticks([begin / 2, (begin + end) / 2], ["forward", "backward"])
        axis.set(xlim=(0, end), ylim=(0, 1.5 * budget / 1e6))
        axis.set_title(one.title, loc="left", fontsize=TITLE)
        bare(axis)
        peak = max(one.held)
        over = max(peak, budget) if peak > 0.85 * budget else peak  # the word does not stand on the line
        top = (one.held.index(peak), over / 1e6)
        axis.annotate("peak", top, (0, 2), textcoords="offset points", ha="center", fontsize=TEXT)
        alt.append(
            f"{one.title}: the peak is {human(peak)}, {'under' if peak <= budget else 'over'} the line"
        )
    axes[0].yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes[0].yaxis.set_major_formatter(FuncFormatter(ticks_in("MB")))
    patches = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=TEXT, frameon=False)
    return render(figure, f"Memory over a step, and a line at {human(budget)}. {'; '.join(alt)}.")


def _colour(label: str, one: Try) -> str:
    block = re.search(r"blocks\.(\d+)", label)
    if not block:
        return OUTSIDE
    number = int(block[1])
    return WHOLE if number in one.whole else MLP if number in one.mlps else NOTHING
