import pytest

from course_lib.chapters.all_reduce_times import plot_all_reduce_times
from simulator.inputs.hardware import Link
from simulator.inputs.known_devices import find_device
from simulator.predict.collective_time import (
    ALGORITHMS,
    all_reduce_rounds,
    all_reduce_seconds,
    collective_seconds,
    tree_ring_crossover,
)

LINK = Link(10e-6, 2e9, efficiency=0.5)


@pytest.mark.parametrize(
    ("ranks", "naive", "tree", "ring"),
    [(1, 0, 0, 0), (2, 2, 2, 2), (3, 4, 4, 4), (4, 6, 4, 6), (9, 16, 8, 16)],
)
def test_rounds(ranks, naive, tree, ring):
    assert [all_reduce_rounds(name, ranks) for name in ALGORITHMS] == [naive, tree, ring]


def test_seconds_by_hand():
    n = 4e6  # 4 ms over the wire
    assert all_reduce_seconds("naive", n, 4, LINK) == pytest.approx(6 * (10e-6 + 4e-3))
    assert all_reduce_seconds("tree", n, 4, LINK) == pytest.approx(4 * (10e-6 + 4e-3))
    assert all_reduce_seconds("ring", n, 4, LINK) == pytest.approx(6 * (10e-6 + 1e-3))


def test_the_ring_is_what_plans_are_priced_with():
    h100 = find_device("h100")
    assert all_reduce_seconds("ring", 1e9, 8, h100.node) == pytest.approx(
        collective_seconds("all-reduce", 1e9, 8, 1, h100)
    )


@pytest.mark.parametrize("ranks", [4, 5, 7, 8, 16, 100])
def test_at_the_crossover_both_take_the_same_time(ranks):
    n = tree_ring_crossover(ranks, LINK)
    tree, ring = (all_reduce_seconds(name, n, ranks, LINK) for name in ("tree", "ring"))
    assert tree == pytest.approx(ring)
    assert all_reduce_seconds("tree", n / 2, ranks, LINK) < all_reduce_seconds("ring", n / 2, ranks, LINK)
    assert all_reduce_seconds("tree", n * 2, ranks, LINK) > all_reduce_seconds("ring", n * 2, ranks, LINK)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_few_ranks_have_nothing_to_cross(ranks):
    assert tree_ring_crossover(ranks, LINK) == 0
    for n in (1, 1e6):
        assert all_reduce_seconds("ring", n, ranks, LINK) <= all_reduce_seconds("tree", n, ranks, LINK)


def test_the_drawing_says_where_they_cross_unless_the_link_was_measured():
    assert f"from {tree_ring_crossover(4, LINK):,.0f} bytes" in plot_all_reduce_times(LINK, 4).alt
    assert "never below" in plot_all_reduce_times(LINK, 2).alt
    measured = plot_all_reduce_times(LINK, 4, measured={"ring": [(1e4, 1e-3)]})
    assert measured.alt.endswith("Dots are measured.")
    assert "bytes from" not in measured.alt
    assert measured.svg.count("ring, measured") == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: all_reduce_rounds("star", 4), "algorithm must be one of naive, tree, ring, not star"),
        (lambda: all_reduce_rounds("ring", 0), "ranks must be a whole number of at least 1, not 0"),
        (lambda: plot_all_reduce_times(LINK, 4, smallest=5, largest=5), "smallest < largest, not 5 and 5"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call()
