"""Chapter 08's drawing of a block: each operation's output, which of them are kept, and which run again."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH

KEPT, BACK, INK = "#bbbbbb", "#1b3a5c", "#222222"
TALL, RESIDUAL = 1.5, 0.56  # of the largest bar, and above the operations
ADDED = 0.62  # from an operation to the sum behind it


def plot_block(
    sizes: Mapping[str, float],
    again: Collection[str],
    last: str,
    adding: Collection[str] = (),
    prices: Mapping[str, float] | None = None,
    names: tuple[str, str] = ("kept", "runs again in backward"),
) -> Picture:
    """Operations from left to right, and under each a bar for its output, or its sum: blue runs again.

    Args:
        sizes: the block's input, then each operation in its order -> GB of its output.
        again: the operations that run again.
        last: the operation behind all of these; backward does not need its output.
        adding: the operations whose output is added to the residual, a line above the operations. The bar of
            such an operation stands under the sum, which is as large.
        prices: operation -> how many % longer it takes to run it again; above those that are named.
        names: what grey and blue mean.

    Raises:
        ValueError: an operation in ``again`` is none of the block's.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    entry, *operations = sizes
    if strange := sorted(set(again) - set(operations)):
        raise ValueError(f"{strange[0]!r} cannot run again: the names are {', '.join(map(repr, operations))}")
    prices = prices or {}
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    axis = figure.subplots()
    highest, words = max(sizes.values()), {"ha": "center", "va": "center", "fontsize": TEXT}
    row, places = [entry, *operations, last], [0.0]
    for name in row[:-1]:
        places.append(places[-1] + (ADDED + 0.8 if name in adding else 1))
    line, arrow = {"color": INK, "lw": 1}, {"arrowstyle": "->", "color": INK, "lw": 1}
    plus = [place + ADDED for place, name in zip(places, row, strict=True) if name in adding]
    end = places[-1] + (0.85 if last in adding else 0.45)
    axis.plot((0.15, end), (0, 0), **line, zorder=0)
    for start, stop in zip([0.3, *(x + 0.13 for x in plus)], plus, strict=False):
        axis.plot((start, start, stop), (0, RESIDUAL, RESIDUAL), **line, zorder=0)
        axis.annotate("", (stop, 0.06), (stop, RESIDUAL + 0.01), arrowprops=arrow)
    axis.plot(plus, [0] * len(plus), "o", ms=10, mfc="white", mec=INK)
    axis.plot(plus, [0] * len(plus), "+", ms=6, color=INK)
    for place, name in zip(places, row, strict=True):
        runs = name in again
        if name != entry:
            face, edge = (BACK, BACK) if runs else ("white", INK)
            axis.add_patch(Rectangle((place - 0.43, -0.19), 0.86, 0.38, facecolor=face, edgecolor=edge))
        axis.text(place, 0, name, color="white" if runs else INK, **words)
        if name in prices:
            axis.text(place, 0.34, f"+{prices[name]:.1f} %", **words)
        if name in sizes:
            height, colour = TALL * sizes[name] / highest, BACK if runs else KEPT
            place, start = (place + ADDED, -0.1) if name in adding else (place, -0.19)
            axis.annotate("", (place, -0.42), (place, start), arrowprops=arrow)
            axis.add_patch(Rectangle((place - 0.25, -0.42 - height), 0.5, height, facecolor=colour, lw=0))
            axis.text(place, -0.55 - height, f"{sizes[name]:.1f} GB", **words)
    axis.set(xlim=(-0.4, end), ylim=(-0.7 - TALL, RESIDUAL + 0.1))
    axis.axis("off")
    patches = [Patch(color=colour, label=name) for colour, name in zip((KEPT, BACK), names, strict=True)]
    figure.legend(handles=patches, loc="outside lower center", ncols=2, fontsize=TEXT, frameon=False)
    longer = {name: f", {price:.1f} % longer" for name, price in prices.items()}
    blue = {"runs again in backward": "again"}.get(names[1], names[1])
    amounts = (
        f"{'the sum after ' * (name in adding)}{name} {size:.1f} GB{longer.get(name, '')}"
        f"{f', {blue}' if name in again else ''}"
        for name, size in sizes.items()
    )
    return render(figure, f"A block's input and operations, and their outputs: {'; '.join(amounts)}; {last}.")
