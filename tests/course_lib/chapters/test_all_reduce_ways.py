"""What chapter 04 tells of a gradient and of a loss, and what rings send through the cards of a machine."""

import pytest

from course_lib.chapters.all_reduce_ways import (
    equal_at,
    price_borders,
    price_buckets,
    price_ways,
    ways_in_machines,
    ways_of_one,
)
from course_lib.chapters.busy_cards import plot_busy_cards, plot_machine, through_cards
from course_lib.chapters.crossings import plot_crossing
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


def test_a_ring_through_machines_pays_for_its_own_hops():
    _, rings = ways_in_machines(H100).values()
    near, far = H100.node.latency, H100.network.latency
    assert rings(0) == pytest.approx(2 * (125 * far + 875 * near) - 2 * near)
    assert rings(1e9) - rings(0) == pytest.approx(2 * 0.999 * 1e9 / 8 / H100.network.rate)


def test_each_way_is_the_faster_one_from_a_size_on():
    tree, ring = ways_of_one(H100.network).values()
    for first, then in ((tree, ring), *(ways_in_machines(H100, n).values() for n in (8, 64, 1000))):
        size = equal_at(first, then)
        assert first(size) == pytest.approx(then(size))
        assert first(size / 2) < then(size / 2)
    assert equal_at(tree, ring) == pytest.approx(tree_ring_crossover(1000, H100.network))
    assert equal_at(*ways_in_machines(H100, 8).values()) == pytest.approx(tree_ring_crossover(8, H100.node))


def test_trees_over_machines_send_what_their_three_parts_send():
    trees, _ = ways_in_machines(H100).values()
    inside = 2 * H100.node.seconds(7 / 8 * 1e9, 7)
    assert trees(1e9) == pytest.approx(inside + 14 * H100.network.seconds(1e9 / 8, 1))


def test_the_picture_says_from_where_rings_are_faster():
    one = plot_crossing(ways_of_one(H100.network))
    assert one.alt.endswith("The ring is faster from 26 MB on.")
    assert smallest_text(one.svg) >= 11
    with pytest.raises(ValueError, match="20 GPUs do not fill machines of 8"):
        ways_in_machines(H100, 20)


def test_a_ring_sends_fewer_tensors_and_has_more_rounds():
    ring = price_ways(["ring"], H100.network, tensors=True).text.splitlines()[2]
    assert ring.split()[:3] == ["ring", "1,998", "2"]
    borders = price_borders(1000, 8, link=H100.network).text
    assert [line.split() for line in borders.splitlines()[2:]] == [
        ["8", "14", "1.75", "6", "6", "450", "kB"],
        ["1,000", "1,998", "2", "20", "20", "26", "MB"],
    ]
    with pytest.raises(ValueError, match="ranks"):
        price_borders(2, 8, link=H100.network)


def test_every_bucket_takes_its_latencies():
    told = price_buckets(1, 10, 40, link=H100.network).text
    assert [line.split()[4:] for line in told.splitlines()[2:]] == [
        ["62", "ms", "44", "ms"],
        ["170", "ms", "45", "ms"],
        ["530", "ms", "47", "ms"],
    ]


def test_what_is_asked_is_not_told():
    told = price_ways(["naive", "ring", "tree"], H100.network, known=["naive", "ring"]).text
    assert told.startswith("A message takes 6 µs, and 25 ms more for each GB.")
    assert "1,998" not in told
    assert [line.split()[1:] for line in told.splitlines()[3:]] == [
        ["50", "s", "?", "?"],
        ["62", "ms", "?", "?"],
        ["?", "?", "?"],
    ]


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
    assert "eight rings: 250 MB through each network card: 6 ms" in picture.alt
    assert smallest_text(picture.svg) >= 11


def test_the_picture_of_a_ring_through_machines():
    picture = plot_machine(H100)
    assert picture.alt == (
        "Two machines of 8 GPUs with links between them, 3 µs, and 2.8 ms for 1 GB, each with its own network card, "
        "6 µs, and 25 ms for 1 GB. A ring goes through all GPUs of a machine, then through a network card to the next "
        "machine."
    )
    assert smallest_text(picture.svg) >= 11
