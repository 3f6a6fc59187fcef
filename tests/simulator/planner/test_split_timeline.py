"""A split on a time axis, and drawn over its layer: as long as it was priced, with the plan's own numbers."""

import pytest

from simulator.inputs.galaxy import WAYS
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.planner.layer_split import even_layer, plan_layer
from simulator.planner.split_timeline import split_timeline
from simulator.plots.layer_split import plot_layer_split
from simulator.plots.picture import smallest_text

CPU, BERT = GPUS["laptop-cpu"], MODELS["bert-base"]
DEVICES = [CPU, CPU.slowed(3)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("split_of", [even_layer, plan_layer])
def test_it_is_as_long_as_the_layer_and_each_rank_computes_what_was_priced(way, split_of):
    split = split_of(BERT, DEVICES, way)
    timeline = split_timeline(split)
    # with "tp" connection 2 is drawn behind the MLP, and its forward is priced with the next layer's attention
    near = 0.01 if way == "tp" else 1e-9
    assert timeline.makespan == pytest.approx(split.seconds, rel=near)
    for rank, busy in enumerate(split.busy):
        assert timeline.busy(rank) == pytest.approx(busy)


def test_a_message_begins_when_the_slowest_rank_has_ended():
    split = even_layer(BERT, DEVICES, "galaxy")
    timeline = split_timeline(split)
    ends = [
        next(s for s in timeline.of(rank, "compute") if s.name.endswith("block 1")).end for rank in (0, 1)
    ]
    behind = [s.start for s in timeline.of(0, "communication") if s.start >= ends[0]]
    assert min(behind) == pytest.approx(max(ends))


def test_the_drawing_has_the_shares_and_the_steps():
    split = plan_layer(BERT, DEVICES, "galaxy")
    picture = plot_layer_split(split.placement, split.shares, title="planned")
    heads, columns, tokens = (
        " + ".join(map(str, split.shares[name])) for name in ("heads", "columns", "sequence")
    )
    assert picture.alt == (
        f"planned, divided among the ranks. attention: {heads} heads; connection 1: {tokens} tokens; "
        f"MLP: {columns} columns; connection 2: {tokens} tokens."
    )
    assert picture.svg.count("reduce-scatter") == 2
    assert picture.svg.count("all-gather") == 2
    assert smallest_text(picture.svg) >= 11


def test_whole_blocks_are_drawn_as_whole():
    split = even_layer(BERT, DEVICES, "tp")
    assert "connection 1: whole on every rank" in plot_layer_split(split.placement, split.shares).alt


@pytest.mark.parametrize("heads", [[-1, 13], [1.5, 2], [float("nan"), 3], [0, 0]])
def test_shares_that_cannot_be_drawn_are_named(heads):
    split = even_layer(BERT, DEVICES, "galaxy")
    with pytest.raises(ValueError, match="heads must be a whole number"):
        plot_layer_split(split.placement, split.shares | {"heads": heads})
