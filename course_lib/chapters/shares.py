"""How several quantities of one network are spread over its parts: bytes, work, activations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from course_lib.observe.networks.render import PALETTE
from course_lib.observe.show.amounts import amount
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH


def plot_shares(
    quantities: Mapping[str, Mapping[str, float]],
    units: Mapping[str, str],
    title: str = "",
    one_scale: bool = False,
    colours: Mapping[str, str] = MappingProxyType({}),
) -> Picture:
    """One bar for each quantity, divided among the parts, with its total beside it.

    Args:
        quantities: name -> (part -> value); the parts are the same for all, in the order of computation.
        units: name -> ``"B"``, ``"FLOP"`` or another unit of ``amount``.
        title: stands above the bars.
        one_scale: the quantities measure the same, so a bar is as long as its total, and amounts stand in it.
            Otherwise all bars are as long, and shares stand in them.
        colours: of parts that do not have the palette's.

    Raises:
        ValueError: no quantity, parts that differ, or a quantity that is nothing everywhere.
    """
    from matplotlib.figure import Figure

    parts = list(next(iter(quantities.values()), ()))
    inks = [colours.get(part, PALETTE[i % len(PALETTE)]) for i, part in enumerate(parts)]
    for name, values in quantities.items():
        if list(values) != parts:
            raise ValueError(
                f"{name} has the parts {', '.join(values)}; the first quantity has {', '.join(parts)}"
            )
        if sum(values.values()) <= 0:
            raise ValueError(f"{name} is nothing in every part: it has no shares")
    if not parts:
        raise ValueError("there is nothing to draw: give at least one quantity with at least one part")

    figure = Figure(figsize=(WIDTH, 0.9 + 0.62 * len(quantities)), layout="constrained")
    axis = figure.subplots()
    names = [f"{name},\n{amount(sum(values.values()), units[name])}" for name, values in quantities.items()]
    letters = max(len(line) for name in names for line in name.split("\n"))
    longest = max(sum(values.values()) for values in quantities.values())
    per_share = (72 * WIDTH - 0.6 * TEXT * letters - 15) / 100  # points for each part in a hundred
    for row, (name, values) in enumerate(quantities.items()):
        left, total = 0.0, longest if one_scale else sum(values.values())
        for i, (part, value) in enumerate(values.items()):
            share = 100 * value / total
            axis.barh(row, share, left=left, height=0.8, color=inks[i], edgecolor="white")
            text, width = _said(value, total, units[name] if one_scale else ""), share * per_share
            upright = not _fits(text, width)
            text = text if width >= TEXT + 4 else ""  # less holds no line of text, not even an upright one
            if not upright and _fits(part, width):
                text = f"{part}\n{text}"
            axis.text(
                left + share / 2, row, text, rotation=90 * upright, ha="center", va="center", fontsize=TEXT
            )
            left += share
    axis.set_yticks(range(len(names)), names, fontsize=TEXT)
    axis.set_xlim(0, 100)
    axis.set_xticks([])
    axis.invert_yaxis()
    axis.spines[:].set_visible(False)
    axis.tick_params(left=False)
    axis.set_title(title, loc="left", fontsize=TITLE)
    handles = [axis.barh(0, 0, color=ink) for ink in inks]
    figure.legend(
        handles,
        parts,
        loc="outside lower center",
        ncols=min(len(parts), 6 if sum(map(len, parts)) <= 70 else 3),
        columnspacing=1.2,
        frameon=False,
        fontsize=TEXT,
    )
    said = (
        f"{name} ".replace("\n", " ")
        + ", ".join(
            f"{part} {_said(value, sum(values.values()), units[name] if one_scale else '')}"
            for part, value in values.items()
        )
        for name, values in quantities.items()
    )
    return render(figure, f"{title}: " * bool(title) + "; ".join(said) + ".")


def _fits(text: str, points: float) -> bool:
    return 0.6 * TEXT * len(text) + 4 <= points


def _said(value: float, total: float, unit: str) -> str:
    """The amount, in its unit; without one, the share of the total."""
    return amount(value, unit) if unit else f"{100 * value / total:.0f} %"
