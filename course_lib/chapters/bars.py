"""A few amounts as bars: panels beside each other, one for each quantity, and the same names in all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.plots.picture import Picture, render
from simulator.plots.style import PARTS, TEXT, TITLE, WIDTH, bare


def plot_bars(
    panels: Mapping[str, Mapping[str, float]],
    one_scale: bool = False,
    alt: str | None = None,
    colours: Sequence[str] = PARTS,
    ranges: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
) -> Picture:
    """For each quantity a bar for each name.

    Args:
        panels: the quantity with its unit -> name -> amount. All panels have the same names in the same order.
        one_scale: the panels measure the same, so their bars can be compared; by default each has its own scale.
        alt: the sentence that says what is seen; by default all amounts.
        colours: one for each name, so that a method keeps its colour from picture to picture.
        ranges: the quantity -> name -> the lowest and the highest of several runs, drawn as a whisker.

    Raises:
        ValueError: there is nothing to draw, the names differ, or an amount is below 0.
    """
    from matplotlib.figure import Figure

    names = list(next(iter(panels.values()), ()))
    if not names or any(list(amounts) != names for amounts in panels.values()):
        raise ValueError("give one or more panels, each with the same names")
    if any(not amount >= 0 for amounts in panels.values() for amount in amounts.values()):
        raise ValueError("an amount must be at least 0")
    figure = Figure(figsize=(WIDTH, 0.6 + 0.34 * len(names)), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    ranges = ranges or {}
    ends = {  # of each bar with its whisker
        quantity: {
            name: max([amount, *ranges.get(quantity, {}).get(name, ())]) for name, amount in amounts.items()
        }
        for quantity, amounts in panels.items()
    }
    longest = max(end for each in ends.values() for end in each.values())
    for axis, (quantity, amounts) in zip(axes, panels.items(), strict=True):
        axis.barh(range(len(names)), amounts.values(), 0.62, color=colours[: len(names)])
        for place, (name, amount) in enumerate(amounts.items()):
            if name in ranges.get(quantity, {}):
                axis.plot(ranges[quantity][name], (place, place), color="#222222", marker="|", markersize=8)
            end, right = (ends[quantity][name], place), (4, 0)  # points
            axis.annotate(_short(amount), end, right, textcoords="offset points", va="center", fontsize=TEXT)
        axis.set_xlim(0, 1.25 * (longest if one_scale else max(ends[quantity].values())) or 1)
        axis.set_title(quantity, fontsize=TITLE, loc="left")
        axis.set_xticks([])
        bare(axis)
        axis.spines["bottom"].set_visible(False)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    said = (
        f"{quantity}: {', '.join(f'{name} {_short(amount)}' for name, amount in amounts.items())}"
        for quantity, amounts in panels.items()
    )
    spans = "; ".join(
        f"{quantity}, lowest and highest: {', '.join(f'{n} {_short(a)} and {_short(b)}' for n, (a, b) in own.items())}"
        for quantity, own in ranges.items()
    )
    return render(figure, alt or f"Bars. {'; '.join(said)}.{f' {spans}.' if spans else ''}")


def _short(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 1000 else f"{amount:.3g}"
