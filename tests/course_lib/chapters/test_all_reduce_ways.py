"""What chapter 04 tells of a gradient and of a loss, and what rings send through the cards of a machine."""

import pytest

from course_lib.chapters.all_reduce_times import plot_all_reduce_times
from course_lib.chapters.all_reduce_ways import equal_at, price_levels, price_ways, three_ways
from course_lib.chapters.busy_cards import plot_busy_cards, plot_machine, through_cards
from simulator.inputs.known_devices import find_device
from simulator.plots.picture import smallest_text
from simulator.predict.collective_time import group_link, tree_ring_crossover

H100 = find_device("h100")
CARDS = group_link(1000, 1, H100)


def test_a_card_for_each_rank():
    told = price_ways(["naive", "tree", "ring"], H100.network).text
    assert [line.split() for line in told.splitlines()[2:]] == [
        ["naive", "1,998", "50", "s", "12", "ms"],
        ["tree", "20", "500", "ms", "0.12", "ms"],
        ["ring", "1,998", "62", "ms", "12", "ms"],
    ]


def test_rings_by_levels_need_fewer_rounds():
    told = price_levels(CARDS, H100).text
    assert told.startswith(
        "Between machines a message takes 6 µs, and 3.1 ms for each GB that goes through all 8 network cards; "
        "inside, 3 µs, and 2.8 ms for each GB."
    )
    assert [line.split() for line in told.splitlines()[3:]] == [
        ["tree", "20", "63", "ms", "0.12", "ms"],
        ["ring", "1,998", "18", "ms", "12", "ms"],
        ["rings", "by", "levels", "262", "13", "ms", "1.5", "ms"],
    ]


def test_each_way_is_the_fastest_between_two_sizes():
    tree, ring, levels = three_ways(CARDS, H100).values()
    for first, then in ((tree, levels), (levels, ring)):
        size = equal_at(first, then)
        assert first(size) == pytest.approx(then(size))
        assert first(size / 2) < then(size / 2)
    assert equal_at(tree, ring) == pytest.approx(tree_ring_crossover(1000, CARDS))
    assert equal_at(tree, levels) < equal_at(tree, ring) < equal_at(levels, ring)


def test_the_picture_says_which_way_is_the_fastest():
    picture = plot_all_reduce_times(CARDS, 1000, 2, 1e11, marked=(4, 1e9), levels=H100)
    assert picture.alt.endswith(
        "the tree is the fastest up to 27 MB, then rings by levels, and the ring from 2.1 GB on."
    )
    assert smallest_text(picture.svg) >= 11


def test_a_picture_of_marks_does_not_tell_which_is_right():
    picture = plot_all_reduce_times(CARDS, 1000, 2, 1e11, marked=(4, 1e9), asked=(1e6, 2e8), levels=H100)
    assert picture.alt.endswith("where do they cross? 1 MB, 200 MB.")
    assert smallest_text(picture.svg) >= 11


def test_what_is_asked_is_not_told():
    told = price_ways(["naive", "ring"], H100.network, unknown="ring").text
    assert told.startswith("A message takes 6 µs, and 25 ms more for each GB.")
    assert "1,998" not in told
    assert [line.split()[-1] for line in told.splitlines()[3:]] == ["ms", "?"]


def test_what_leaves_a_machine_through_each_card():
    leaves = 2 * 15 / 16  # around a ring of 16, a rank's tensors
    assert through_cards(16, 4) == pytest.approx([0, 0, 0, leaves])
    assert through_cards(16, 4, rings=4) == pytest.approx([leaves / 4] * 4)
    assert through_cards(4, 4) == [0] * 4
    with pytest.raises(ValueError, match="10 ranks do not fill machines of 4"):
        through_cards(10, 4)


def test_the_picture_of_a_machine():
    picture = plot_busy_cards(1000, 8, 1e9, H100.network)
    assert "one ring: 2 GB through one network card: 50 ms" in picture.alt
    assert "one of 8 rings: 250 MB through one network card: 6 ms" in picture.alt
    assert "all 8 rings: 250 MB through each network card: 6 ms" in picture.alt
    assert smallest_text(picture.svg) >= 11


def test_the_picture_of_a_machine_sends_nothing():
    picture = plot_machine(H100)
    assert picture.alt == (
        "A machine: 8 GPUs with links between them, 2.8 ms for 1 GB, each with its own network card, 25 ms."
    )
    assert smallest_text(picture.svg) >= 11
