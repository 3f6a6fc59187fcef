"""The closed forms equal what message-by-message play of each algorithm counts, to the byte."""

import doctest

import pytest

import simulator.predict.collective_traffic
from simulator.inputs.chunks import chunk_sizes
from simulator.ledgers.traffic import Traffic, TrafficRow
from simulator.predict.collective_traffic import (
    all_to_all_sent,
    gather_sent,
    naive_all_reduce_sent,
    ring_all_gather_sent,
    ring_all_reduce_sent,
    ring_reduce_scatter_sent,
    scatter_sent,
    sent_bytes,
    tree_all_reduce_sent,
    tree_broadcast_sent,
    tree_reduce_sent,
)

CASES = [(n, p) for n in (0, 1, 5, 12, 1001) for p in (1, 2, 3, 4, 6, 8)]


def test_examples_in_docstrings():
    assert doctest.testmod(simulator.predict.collective_traffic).failed == 0


def played_ring(elements, ranks, rank):
    """Chunks one rank passes on: reduce-scatter (it ends owning its own), then all-gather."""
    chunks = chunk_sizes(elements, ranks)
    scattered = [chunks[(rank - 1 - step) % ranks] for step in range(ranks - 1)]
    gathered = [chunks[(rank - step) % ranks] for step in range(ranks - 1)]
    return sum(scattered), sum(gathered)


@pytest.mark.parametrize(("n", "p"), CASES)
def test_ring(n, p):
    for rank in range(p):
        scattered, gathered = played_ring(n, p, rank)
        assert ring_reduce_scatter_sent(n, 4, p, rank) == 4 * scattered
        assert ring_all_gather_sent(n, 4, p, rank) == 4 * gathered
        assert ring_all_reduce_sent(n, 4, p, rank) == 4 * (scattered + gathered)


@pytest.mark.parametrize(("n", "p"), CASES)
def test_binomial_tree(n, p):
    root = p // 2
    sent, reached, step = [0] * p, {0}, 1
    while step < p:  # each round, everyone who has the tensor sends it on
        for place in sorted(reached):
            if place + step < p:
                sent[(place + root) % p] += n
                reached = reached | {place + step}
        step *= 2
    assert len(reached) == p
    assert [tree_broadcast_sent(n, 2, p, rank, root) for rank in range(p)] == [2 * s for s in sent]
    assert sum(tree_reduce_sent(n, 2, p, rank, root) for rank in range(p)) == 2 * sum(sent)


@pytest.mark.parametrize(("n", "p"), CASES)
def test_the_mean_over_ranks_is_the_closed_form(n, p):
    exact = {
        "all-reduce": ring_all_reduce_sent,
        "all-gather": ring_all_gather_sent,
        "reduce-scatter": ring_reduce_scatter_sent,
        "all-to-all": all_to_all_sent,
        "broadcast": tree_broadcast_sent,
        "reduce": tree_reduce_sent,
    }
    for name, form in exact.items():
        mean = sum(form(n, 4, p, rank) for rank in range(p)) / p
        assert mean == pytest.approx(sent_bytes(name, 4 * n, p)), name
    if n % p == 0:
        for name, form in {"scatter": scatter_sent, "gather": gather_sent}.items():
            mean = sum(form(n, 4, p, rank) for rank in range(p)) / p
            assert mean == pytest.approx(sent_bytes(name, 4 * n, p)), name


def test_three_ways_to_all_reduce():
    """Ten ranks, ten numbers: the ring spreads the load that the others put on rank 0."""
    naive, tree, ring = (
        [form(10, 1, 10, rank) for rank in range(10)]
        for form in (naive_all_reduce_sent, tree_all_reduce_sent, ring_all_reduce_sent)
    )
    assert sum(naive) == sum(tree) == sum(ring) == 2 * 9 * 10
    assert (max(naive), max(tree), max(ring)) == (90, 40, 18)


def test_send_and_barrier():
    assert sent_bytes("send", 7, 2) == 7
    assert sent_bytes("barrier", 0, 4) == 0


def test_rows_with_the_same_collective_and_group_are_merged():
    row = TrafficRow("all-reduce", 4, 1, 100, 150)
    total = Traffic([row]) + Traffic([row, TrafficRow("all-reduce", 2, 1, 10, 10)])
    assert total.of("all-reduce").rows == (
        TrafficRow("all-reduce", 2, 1, 10, 10),
        TrafficRow("all-reduce", 4, 2, 200, 300),
    )
    assert (total.calls, total.sent) == (3, 310)


def test_refusals():
    with pytest.raises(ValueError, match=r"collective must be one of all-reduce, .* not shout"):
        sent_bytes("shout", 1, 2)
    with pytest.raises(ValueError, match="group size must be a whole number of at least 1, not 0"):
        sent_bytes("all-reduce", 1, 0)
    with pytest.raises(ValueError, match="rank must be a whole number between 0 and 3, not 4"):
        ring_all_reduce_sent(8, 4, 4, 4)
    with pytest.raises(ValueError, match="parts must be a whole number of at least 1, not 0"):
        chunk_sizes(4, 0)
