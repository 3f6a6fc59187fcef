"""What hybrid layers send, against sums written by hand."""

import pytest

from simulator.inputs.shape import ModelShape
from simulator.predict.galaxy_traffic import galaxy_traffic, step_traffic, summed_gradients
from simulator.predict.traffic import calls, ddp_traffic, tensor_parallel_traffic

L, H, A, S, F, B = 3, 16, 8, 24, 40, 2
SHAPE = ModelShape(L, H, A, 100, S, ffn=F)
N = B * S * H  # elements of a whole tensor between two blocks
PARAMETERS = {"attention": 4 * (H * H + H), "mlp": 2 * F * H + F + H}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_tp_sends_what_tensor_parallelism_sends(ranks):
    expected = tensor_parallel_traffic(B * S, H, ranks, L, 4)
    assert galaxy_traffic(SHAPE, "tp", ranks, 0, batch=B) == expected


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_other_ways_with_equal_parts(ranks):
    def gathered(times):
        return calls("all-gather", [N], 4, ranks, times=times)

    def scattered(times):
        return calls("reduce-scatter", [N], 4, ranks, times=times)

    def reduced(times):
        return calls("all-reduce", [N], 4, ranks, times=times)

    norms, biases = [2 * H, 2 * H] * L, [H] * L
    keys = calls("all-gather", [2 * N], 4, ranks, times=L) + calls(
        "reduce-scatter", [2 * N], 4, ranks, times=L
    )
    attention, mlp = [H * H + H] * 4 * L, [H * F + F, F * H + H] * L
    expected = {
        # a block: 2 gathers and 2 scatters; the first input is there; its gradient is all-reduced; the last gather
        "galaxy": gathered(2 * L - 1 + 2 * L + 1)
        + scattered(2 * L + 2 * L - 1)
        + reduced(1)
        + ddp_traffic(norms + 2 * biases, ranks),
        "galaxy2": gathered(L - 1 + L + 1)
        + scattered(L + L - 1)
        + reduced(1)
        + ddp_traffic(norms + biases + mlp, ranks),
        "sp": keys + gathered(2) + ddp_traffic(norms + attention + mlp, ranks),
    }
    for way, traffic in expected.items():
        got = galaxy_traffic(SHAPE, way, ranks, 1, batch=B)
        assert [(r.collective, r.calls, r.payload) for r in got.rows] == [
            (r.collective, r.calls, r.payload) for r in traffic.rows
        ], way
        assert got.sent == pytest.approx(traffic.sent, abs=1e-6), way


def test_unequal_parts_go_around_a_ring():
    lengths = (5, 3, 0)  # tokens
    for rank, kept in enumerate((3, 0, 5)):  # what the rank on the right has already
        assert step_traffic("all-gather", lengths, 10, rank).sent == 10 * (8 - kept)
    for rank, kept in enumerate(lengths):
        assert step_traffic("reduce-scatter", lengths, 10, rank).sent == 10 * (8 - kept)
    assert [step_traffic("all-gather", lengths, 10, rank).calls for rank in range(3)] == [1, 2, 1]


def test_over_all_ranks_unequal_parts_send_as_much_as_equal_ones():
    equal = sum(galaxy_traffic(SHAPE, "galaxy", 3, rank, batch=B).sent for rank in range(3))
    unequal = sum(
        galaxy_traffic(SHAPE, "galaxy", 3, rank, batch=B, sequence=[2, 3, 3]).sent for rank in range(3)
    )
    assert unequal == pytest.approx(equal)


def test_forward_alone_sums_no_gradients():
    got = galaxy_traffic(SHAPE, "galaxy", 2, 0, batch=B, backward=False)
    assert {row.collective: row.calls for row in got.rows} == {"all-gather": 2 * L, "reduce-scatter": 2 * L}


def test_a_rank_with_whole_matrices_sums_their_gradients():
    assert sum(summed_gradients(SHAPE, "sp")) == SHAPE.layer_parameters()
    assert sum(summed_gradients(SHAPE, "galaxy2")) == PARAMETERS["mlp"] + 5 * H
    assert summed_gradients(SHAPE, "tp") == []
