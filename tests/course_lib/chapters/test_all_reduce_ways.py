"""What chapter 04 tells of a gradient and of a loss, and what rings send through the cards of a machine."""

import pytest

from course_lib.chapters.all_reduce_ways import (
    eight_rings,
    equal_at,
    price_levels,
    price_ways,
    ways_by_levels,
    ways_of_one,
)
from course_lib.chapters.busy_cards import plot_busy_cards, plot_levels, plot_machine, through_cards
from course_lib.chapters.crossings import plot_crossings
from simulator.inputs.known_devices import find_device
from simulator.plots.picture import smallest_text
from simulator.predict.collective_time import tree_ring_crossover

H100 = find_device("h100")


def test_a_card_for_each_rank():
    told = price_ways(["naive", "tree", "ring"], H100.network).text
    assert [line.split() for line in told.splitlines()[2:]] == [
        ["naive", "1,998", "50", "s", "1.3", "s", "12", "ms"],
        ["tree", "20", "500", "ms", "13", "ms", "0.12", "ms"],
        ["ring", "1,998", "62", "ms", "13", "ms", "12", "ms"],
    ]


def test_rings_by_levels_need_fewer_rounds():
    told = price_levels(H100).text
    assert [line.split() for line in told.splitlines()[2:]] == [
        ["trees", "by", "levels", "14", "14", "49", "ms", "1.3", "ms", "0.13", "ms"],
        ["rings", "by", "levels", "248", "14", "13", "ms", "1.8", "ms", "1.5", "ms"],
    ]


def test_each_way_is_the_faster_one_from_a_size_on():
    tree, ring = ways_of_one(H100.network).values()
    trees, rings = ways_by_levels(H100).values()
    eight = eight_rings(H100)
    for first, then in ((tree, ring), (trees, rings), (rings, eight), (trees, eight)):
        size = equal_at(first, then)
        assert first(size) == pytest.approx(then(size))
        assert first(size / 2) < then(size / 2)
    assert equal_at(tree, ring) == pytest.approx(tree_ring_crossover(1000, H100.network))
    assert equal_at(trees, rings) < equal_at(trees, eight) < equal_at(rings, eight)


def test_a_sum_by_levels_sends_what_its_three_parts_send():
    trees, _ = ways_by_levels(H100).values()
    inside = 2 * H100.node.seconds(7 / 8 * 1e9, 7)
    assert trees(1e9) == pytest.approx(inside + 14 * H100.network.seconds(1e9 / 8, 1))


def test_the_pictures_say_from_where_rings_are_faster():
    few, many = (ways_of_one(H100.network, ranks) for ranks in (8, 1000))
    told = "from 26 MB on: ring of 1,000 ranks"
    both = plot_crossings(few, many)
    assert both.alt.endswith(f"Faster from 450 kB on: ring of 8 ranks; {told}.")
    assert smallest_text(both.svg) >= 11
    assert plot_crossings(many, ways_by_levels(H100)).alt.endswith(f"{told}; from 37 MB on: rings by levels.")


def test_the_picture_of_three_levels():
    picture = plot_levels(1000, 1e9, H100)
    for words in (
        "reduce-scatter: 2.5 ms",
        "in 8 trees: 14 rounds: 44 ms",
        "in 8 rings: 248 rounds: 7.7 ms",
    ):
        assert words in picture.alt
    assert smallest_text(picture.svg) >= 11


def test_what_is_asked_is_not_told():
    told = price_ways(["naive", "ring"], H100.network, unknown=["naive", "ring"]).text
    assert told.startswith("A message takes 6 µs, and 25 ms more for each GB.")
    assert "1,998" not in told
    assert [line.split()[-2:] for line in told.splitlines()[3:]] == [["?", "?"], ["?", "?"]]


def test_what_leaves_a_machine_through_each_card():
    leaves = 2 * 15 / 16  # around a ring of 16, a rank's tensors
    assert through_cards(16, 4) == pytest.approx([0, 0, 0, leaves])
    assert through_cards(16, 4, rings=4) == pytest.approx([leaves / 4] * 4)
    assert through_cards(4, 4) == [0] * 4
    with pytest.raises(ValueError, match="10 ranks do not fill machines of 4"):
        through_cards(10, 4)


def test_the_picture_of_a_machine():
    picture = plot_busy_cards(1000, 1e9, H100.network)
    assert "one ring: 2 GB through one network card: 50 ms" in picture.alt
    assert "one of eight rings: 250 MB through one network card: 6 ms" in picture.alt
    assert "all eight rings: 250 MB through each network card: 6 ms" in picture.alt
    assert smallest_text(picture.svg) >= 11


def test_the_picture_of_a_machine_sends_nothing():
    picture = plot_machine(H100)
    assert picture.alt == (
        "A machine: 8 GPUs with links between them, 3 µs, and 2.8 ms for 1 GB, "
        "each with its own network card, 6 µs, and 25 ms for 1 GB."
    )
    assert smallest_text(picture.svg) >= 11
