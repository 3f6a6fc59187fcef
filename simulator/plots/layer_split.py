"""A layer whose blocks are divided among ranks: a bar for each block, and what is sent between two bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.inputs.checks import at_least
from simulator.inputs.galaxy import transitions
from simulator.plots.picture import Picture, render
from simulator.plots.style import PARTS, TEXT, WIDTH

BLOCKS = {
    "attention": "attention",
    "connection_1": "connection 1",
    "mlp": "MLP",
    "connection_2": "connection 2",
}
UNITS = {"heads": "heads", "columns": "columns", "sequence": "tokens"}
PALE = ("#a9cbe8", "#e8c547", "#8fb99f", "#e5a9a9", "#dcdcdc", "#f0e3c4")  # black text can be read on them


def plot_layer_split(
    placement: Mapping[str, str],
    shares: Mapping[str, Sequence[int]],
    layer: str = "post-norm",
    title: str = "",
) -> Picture:
    """The four blocks of a layer from top to bottom, each divided as its placement says.

    Args:
        placement: block -> heads, columns, sequence or whole.
        shares: list -> what each rank has of it, as ``LayerSplit.shares``.
        layer: the kind of layer, a name of ``simulator.inputs.galaxy.LAYERS``.
    """
    from matplotlib.figure import Figure

    for name, of_ranks in shares.items():
        for share in of_ranks:
            at_least(0, **{name: share})
        at_least(1, **{f"the sum of {name}": sum(of_ranks)})
    ranks = len(next(iter(shares.values())))
    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    axis = figure.subplots()
    moves = transitions(placement, layer)
    for row, block in enumerate(BLOCKS):
        placed = placement[block]
        if placed == "whole":
            parts = [(f"each of the {ranks} ranks: whole", 1.0, PARTS[-1])]
        else:
            total = sum(shares[placed])
            parts = [
                (f"rank {rank}: {share:,} {UNITS[placed]}", share / total, PALE[rank % len(PALE)])
                for rank, share in enumerate(shares[placed])
                if share
            ]
        left = 0.0
        for text, width, colour in parts:
            axis.barh(row, width, left=left, height=0.56, color=colour, edgecolor="white")
            text = text if len(text) < 78 * width else text.partition(":")[2].strip()
            axis.text(left + width / 2, row, text, ha="center", va="center", fontsize=TEXT)
            left += width
        steps = moves[block].forward if block != "connection_2" else moves["input"].forward
        says = " and ".join(steps) or "nothing is sent"
        axis.text(0.5, row + 0.5, f"↓  {says}", ha="center", va="center", fontsize=TEXT, color="#444444")
    axis.set_yticks(range(len(BLOCKS)), list(BLOCKS.values()), fontsize=TEXT)
    axis.set_ylim(len(BLOCKS) - 0.3, -0.45)
    axis.set_xlim(0, 1)
    axis.set_xticks([])
    axis.set_title(title, loc="left", fontsize=TEXT + 1)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return render(figure, _sentence(placement, shares, title))


def _sentence(placement: Mapping[str, str], shares: Mapping[str, Sequence[int]], title: str) -> str:
    blocks = [
        f"{name}: whole on every rank"
        if placement[block] == "whole"
        else f"{name}: {' + '.join(map(str, shares[placement[block]]))} {UNITS[placement[block]]}"
        for block, name in BLOCKS.items()
    ]
    return f"{title or 'A layer'}, divided among the ranks. {'; '.join(blocks)}."
