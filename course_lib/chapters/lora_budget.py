"""Chapter 17's drawings: how many tokens of a step fit into a GPU, and what LoRA learns where its matrices fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from simulator.inputs.checks import positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, human, plain_axes, ticks_in

COLOURS = ("#1b3a5c", "#cc6a24", "#23614a")
PLACED = ("#23614a", "#7d5ba6", "#cc6a24")  # query and value, attention, all six: two as in the lines


class Line(NamedTuple):
    """Bytes of a step: what stays, however many tokens it has, and what each token adds."""

    stays: float
    token: float

    def at(self, tokens: float) -> float:
        return self.stays + tokens * self.token

    def fit(self, capacity: float) -> float:
        """Tokens with which the capacity is full."""
        return (capacity - self.stays) / self.token


def plot_tokens_that_fit(lines: Mapping[str, Line], capacity: float, end: int) -> Picture:
    """Memory over the tokens of a step, a line for each way of training, up to where the GPU is full.

    Args:
        end: tokens at the right end of the axis.

    Raises:
        ValueError: there is no line, there are more than can be told apart, or one does not fit at all.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    positive(capacity=capacity, end=end)
    if not 1 <= len(lines) <= len(COLOURS):
        raise ValueError(f"give 1 to {len(COLOURS)} lines, not {len(lines)}")
    if full := [name for name, line in lines.items() if line.stays >= capacity]:
        raise ValueError(f"{', '.join(full)}: {human(capacity)} are full before the first token")
    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    axis = figure.subplots()
    axis.axhline(capacity / 1e9, color="#222222", linestyle="--", linewidth=1)
    axis.text(0, 1.01 * capacity / 1e9, f" {human(capacity)}: full", va="bottom", fontsize=TEXT)
    told = []
    for (name, line), colour in zip(lines.items(), COLOURS, strict=False):
        tokens = line.fit(capacity)
        told.append(f"{name}: {round(tokens, -2):,.0f} tokens fit")
        axis.plot(
            [0, tokens], [line.stays / 1e9, capacity / 1e9], color=colour, linewidth=2.2, label=told[-1]
        )
        axis.plot(tokens, capacity / 1e9, "X", color=colour, markersize=9)
    axis.set(xlim=(0, end), ylim=(0, 1.12 * capacity / 1e9))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.yaxis.set_major_formatter(FuncFormatter(ticks_in("GB")))
    axis.set_xlabel("tokens of a step", fontsize=TEXT, loc="right")
    axis.legend(loc="lower right", fontsize=TEXT, frameon=False)
    plain_axes(axis)
    return render(figure, f"Memory over the tokens of a step, up to {human(capacity)}. {'; '.join(told)}.")


class Tried(NamedTuple):
    """LoRA in the layers from ``lowest`` up: bytes of a step, and the share of right answers; None: not trained."""

    lowest: int
    bytes: float
    right: float | None


FLOOR = 47.5  # where a choice stands that was not trained


def plot_tried(places: Mapping[str, list[Tried]], capacity: float) -> Picture:
    """Accuracy over memory: a line for each choice of matrices, at each point its lowest layer with LoRA.

    A choice without a point keeps its colour for later.

    Raises:
        ValueError: there is no point, or there are more lines than can be told apart.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    positive(capacity=capacity)
    if not any(places.values()) or len(places) > len(PLACED):
        raise ValueError(f"give 1 to {len(PLACED)} choices of matrices with a point, not {len(places)}")
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axis, told = figure.subplots(), []
    axis.axvspan(capacity / 1e9, 2.6 * capacity / 1e9, color="#eeeeee")
    for (name, own), colour in zip(places.items(), PLACED, strict=False):
        if not own:
            continue
        ran = sorted(one for one in own if one.right is not None)
        x, y = [one.bytes / 1e9 for one in ran], [100 * (one.right or 0) for one in ran]
        axis.plot(x, y, color=colour, marker="o", markersize=13, linewidth=1.4, label=name)
        for one in sorted(own):
            at = one.bytes / 1e9, FLOOR if one.right is None else 100 * one.right
            if one.right is None:
                axis.plot(*at, "s", color=colour, markersize=13)
            axis.text(*at, str(one.lowest), color="white", ha="center", va="center_baseline", fontsize=TEXT)
            said = "not trained" if one.right is None else f"{one.right:.0%}"
            told.append(f"{name} from layer {one.lowest}: {human(one.bytes)}, {said}")
    axis.set(xlim=(0, 2.6 * capacity / 1e9), ylim=(45, 80))
    axis.text(capacity / 1e9, 79.5, "  does not fit", va="top", fontsize=TEXT)
    axis.xaxis.set_major_formatter(FuncFormatter(ticks_in("GB")))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axis.set_xlabel("memory of a step", fontsize=TEXT, loc="right")
    axis.set_ylabel("right, of the test sentences", fontsize=TEXT)
    plain_axes(axis)
    figure.legend(
        loc="outside lower center", ncols=3, fontsize=TEXT, frameon=False, title_fontsize=TEXT,
        title="the number: the lowest layer with LoRA; a square: not trained", markerscale=0.5,
    )  # fmt: skip
    return render(figure, f"Accuracy over memory, {human(capacity)} are full. {'; '.join(told)}.")
