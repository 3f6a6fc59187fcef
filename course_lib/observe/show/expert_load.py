"""The picture of what each expert of each layer gets, and each rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from course_lib.observe.ledgers.expert_load import busiest
from simulator.inputs.checks import amounts, at_least
from simulator.inputs.chunks import chunk_sizes
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH


def plot_expert_load(loads: Sequence[Sequence[float]], ranks: int = 1) -> Picture:
    """A row for each layer and a box for each expert, as dark as its load; a gap between ranks.

    Args:
        loads: for each layer the copies of each expert, from all ranks; all layers have as many experts.
        ranks: among which the experts are dealt.
    """
    from matplotlib.figure import Figure

    at_least(1, ranks=ranks, layers=len(loads))
    for load in loads:
        amounts(load=load)
    shares = [[n * len(load) / sum(load) for n in load] for load in loads]
    most = max(2.0, max(map(max, shares)))
    figure = Figure(figsize=(WIDTH, 1.1 + 0.34 * len(loads)), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=most, aspect="auto")
    for row, layer in enumerate(shares):
        for expert, share in enumerate(layer):
            colour = "white" if share > 0.6 * most else "black"
            axis.text(expert, row, f"{share:.1f}", ha="center", va="center", color=colour, fontsize=8)
    left = [0, *accumulate(chunk_sizes(len(loads[0]), ranks))]
    for border in left[1:-1]:
        axis.axvline(border - 0.5, color="white", linewidth=8)
    who = [f"experts of rank {rank}" for rank in range(ranks)] if ranks > 1 else ["experts"]
    axis.set_xticks([(a + b - 1) / 2 for a, b in pairwise(left)], who)
    axis.set_yticks(range(len(loads)), [f"layer {row}" for row in range(len(loads))])
    axis.tick_params(length=0, labelsize=TEXT)
    axis.spines[:].set_visible(False)
    figure.colorbar(image, ax=axis, label="load, 1 is the mean")
    expert, rank = busiest(loads, ranks)
    return render(
        figure,
        f"Load of experts: the busiest of a layer has {expert:.2f} of the mean, the busiest rank {rank:.2f}.",
    )
