"""The picture of what each expert of each layer gets, and each rank."""

from __future__ import annotations

from collections.abc import Sequence

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
    gap, left, middles = 0.4, 0.0, []
    for rank, number in enumerate(chunk_sizes(len(loads[0]), ranks)):
        first = sum(chunk_sizes(len(loads[0]), ranks)[:rank])
        block = [row[first : first + number] for row in shares]
        extent = (left, left + number, len(loads), 0)
        image = axis.imshow(block, cmap="Blues", vmin=0, vmax=most, extent=extent, aspect="auto")
        for row, layer in enumerate(block):
            for i, share in enumerate(layer):
                colour = "white" if share > 0.6 * most else "black"
                axis.text(
                    left + i + 0.5,
                    row + 0.5,
                    f"{share:.1f}",
                    ha="center",
                    va="center",
                    color=colour,
                    fontsize=8,
                )
        middles.append(left + number / 2)
        left += number + gap
    axis.set(xlim=(0, left - gap), ylim=(len(loads), 0))
    axis.set_xticks(
        middles, [f"experts of rank {rank}" for rank in range(ranks)] if ranks > 1 else ["experts"]
    )
    axis.set_yticks([row + 0.5 for row in range(len(loads))], [f"layer {row}" for row in range(len(loads))])
    axis.tick_params(length=0, labelsize=TEXT)
    axis.spines[:].set_visible(False)
    figure.colorbar(image, ax=axis, label="load, 1 is the mean")
    expert, rank = busiest(loads, ranks)
    return render(
        figure,
        f"Load of experts: the busiest of a layer has {expert:.2f} of the mean, the busiest rank {rank:.2f}.",
    )
