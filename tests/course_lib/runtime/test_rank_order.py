"""Megatron-LM's rank order, against figures of its documentation and against a tensor of ranks."""

import pytest
import torch

from course_lib.runtime.rank_order import ORDER, coordinates, embedding_groups, rank_at, rank_groups

SIXTEEN = {"tp": 2, "dp": 2, "pp": 4}


def test_the_groups_of_megatrons_own_example():
    """The docstring of its initialize_model_parallel: 16 GPUs, tensor parallelism over 2 and a pipeline of 4."""
    assert rank_groups(SIXTEEN, "tp") == [[i, i + 1] for i in range(0, 16, 2)]
    assert rank_groups(SIXTEEN, "pp") == [[i, i + 4, i + 8, i + 12] for i in range(4)]
    assert rank_groups(SIXTEEN, "dp") == [[i, i + 2] for i in (0, 1, 4, 5, 8, 9, 12, 13)]
    assert embedding_groups(SIXTEEN) == [[0, 12], [1, 13], [2, 14], [3, 15]]


@pytest.mark.parametrize("order", [ORDER, ("pp", "dp", "cp", "tp"), ("tp", "pp", "dp", "cp")])
def test_every_group_is_a_line_of_the_tensor_of_ranks(order):
    sizes = {"tp": 2, "cp": 3, "dp": 2, "pp": 4}
    ranks = torch.arange(48).view(
        [sizes[axis] for axis in reversed(order)]
    )  # the last dimension varies fastest
    for axis in order:
        dim = len(order) - 1 - order.index(axis)
        lines = ranks.movedim(dim, -1).reshape(-1, sizes[axis]).tolist()
        assert sorted(lines) == rank_groups(sizes, axis, order=order)
    assert rank_groups(sizes, *order, order=order) == [list(range(48))]
    both = rank_groups(sizes, "dp", "cp", order=order)
    assert sorted(rank for group in both for rank in group) == list(range(48))
    assert all(len(group) == 6 for group in both)
    for rank in range(48):
        place = coordinates(rank, sizes, order)
        assert rank_at(place, sizes, order) == rank
        assert ranks[tuple(place[axis] for axis in reversed(order))] == rank


def test_one_pipeline_stage_is_first_and_last():
    assert embedding_groups({"tp": 2, "pp": 1}) == [[0], [1]]
    assert rank_groups({"tp": 2, "dp": 1}, "dp") == [[0], [1]]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: coordinates(16, SIXTEEN), "rank must be a whole number between 0 and 15, not 16"),
        (lambda: coordinates(0, {"tp": 0}), "tp must be a whole number of at least 1, not 0"),
        (lambda: coordinates(0, {"dp": 2, "ep": 2}), "the axes are tp, cp, dp, pp, not ep"),
        (lambda: rank_groups(SIXTEEN), "a group goes along one or more of tp, dp, pp"),
        (lambda: rank_groups(SIXTEEN, "cp"), "a group goes along one or more of tp, dp, pp, not cp"),
        (
            lambda: rank_at({"tp": 0, "dp": 2, "pp": 0}, SIXTEEN),
            "dp must be a whole number between 0 and 1, not 2",
        ),
        (lambda: rank_at({"tp": 0}, SIXTEEN), "a rank has a coordinate on each of tp, dp, pp, not on tp"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
