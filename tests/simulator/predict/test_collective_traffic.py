"""The closed forms equal what message-by-message play of each algorithm counts, to the byte."""

import pytest

from simulator.inputs.chunks import chunk_sizes
from simulator.ledgers.traffic import Traffic, TrafficRow
from simulator.predict.collective_traffic import (
    ring_all_gather_sent,
    ring_all_reduce_sent,
    ring_reduce_scatter_sent,
    sent_bytes,
)

CASES = [(n, p) for n in (0, 1, 5, 12, 1001) for p in (1, 2, 3, 4, 6, 8)]


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
def test_the_mean_over_ranks_is_the_closed_form(n, p):
    exact = {
        "all-reduce": ring_all_reduce_sent,
        "all-gather": ring_all_gather_sent,
        "reduce-scatter": ring_reduce_scatter_sent,
    }
    for name, form in exact.items():
        mean = sum(form(n, 4, p, rank) for rank in range(p)) / p
        assert mean == pytest.approx(sent_bytes(name, 4 * n, p)), name


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
