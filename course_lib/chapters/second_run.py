"""Chapter 08's drawing of a block: each operation's output, which of them are kept, and which run again."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH

KEPT, BACK, INK = "#bbbbbb", "#1b3a5c", "#222222"
TALL = 1.5  # of the largest bar


def plot_block(
    sizes: Mapping[str, float], again: Collection[str], last: str, prices: Mapping[str, float]
) -> Picture:
    """Operations from left to right, above each its price, and under each arrow a bar for the output: blue runs again.

    Args:
        sizes: the block's input, then each operation in its order -> GB of its output.
        again: the operations that run again.
        last: the operation behind all of these; backward does not need its output.
        prices: operation -> how many % longer it takes to run it again.

    Raises:
        ValueError: an operation in ``again`` is none of the block's.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    entry, *operations = sizes
    if strange := sorted(set(again) - set(operations)):
        raise ValueError(f"{strange[0]!r} cannot run again: the names are {', '.join(map(repr, operations))}")
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    axis = figure.subplots()
    highest, words = max(sizes.values()), {"ha": "center", "va": "center", "fontsize": TEXT}
    for place, operation in enumerate([*operations, last]):
        runs = operation in again
        edge = BACK if runs else INK
        corner, face = (place + 0.16, -0.19), BACK if runs else "white"
        axis.add_patch(Rectangle(corner, 0.78, 0.38, facecolor=face, edgecolor=edge))
        axis.text(place + 0.55, 0, operation, color="white" if runs else INK, **words)
        if operation != last:
            axis.text(place + 0.55, 0.38, f"+{prices[operation]:.1f} %", **words)
    for place, (name, size) in enumerate(sizes.items()):
        arrow = {"arrowstyle": "-", "color": INK, "lw": 1}
        axis.annotate("", (place + 0.17, 0), (place - 0.06, 0), arrowprops=arrow)
        axis.annotate("", (place + 0.05, -0.38), (place + 0.05, 0), arrowprops=arrow | {"arrowstyle": "->"})
        height = TALL * size / highest
        colour = BACK if name in again else KEPT
        axis.add_patch(Rectangle((place - 0.2, -0.42 - height), 0.5, height, facecolor=colour, lw=0))
        axis.text(place + 0.05, -0.55 - height, f"{size:.1f} GB", **words)
    axis.text(-0.18, 0, entry, **words)
    axis.set(xlim=(-0.45, len(sizes) + 0.05), ylim=(-0.7 - TALL, 0.55))
    axis.axis("off")
    patches = [Patch(color=KEPT, label="kept"), Patch(color=BACK, label="runs again in backward")]
    figure.legend(handles=patches, loc="outside lower center", ncols=2, fontsize=TEXT, frameon=False)
    longer = {name: f", {price:.1f} % longer" for name, price in prices.items()}
    amounts = (
        f"{name} {size:.1f} GB{longer.get(name, '')}{', again' if name in again else ''}"
        for name, size in sizes.items()
    )
    return render(figure, f"A block's input and operations, and their outputs: {'; '.join(amounts)}; {last}.")
