"""What experts send where the routing is known."""

import random

import pytest

from simulator.predict.expert_traffic import per_rank, routed_traffic
from simulator.predict.traffic import expert_parallel_traffic


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_in_balance_it_is_what_a_plan_sends(ranks):
    tokens, k, hidden, experts = 24, 2, 16, 12
    routed = [[tokens * k // experts] * experts for _ in range(ranks)]
    [mean] = expert_parallel_traffic(tokens, hidden, k, ranks).rows
    for rank in range(ranks):
        [_, exact] = routed_traffic(routed, hidden, rank).rows
        assert (exact.calls, exact.payload, exact.sent) == (4, mean.payload, mean.sent)


def test_every_copy_that_leaves_its_rank_is_counted():
    """Message by message; seven experts on three ranks: 3, 2 and 2."""
    draws, home = random.Random(0), [0, 0, 0, 1, 1, 2, 2]
    routed = [[draws.randrange(9) for _ in home] for _ in range(3)]
    sent = [0, 0, 0]
    for rank, row in enumerate(routed):
        for expert, copies in enumerate(row):
            if home[expert] != rank:
                sent[rank] += 2 * copies * 10 * 4  # there, and its gradient after the way back
                sent[home[expert]] += 2 * copies * 10 * 4
    assert [routed_traffic(routed, 10, r, 4).of("all-to-all").sent for r in range(3)] == sent
    assert routed_traffic(routed, 10, 0, 4).of("all-gather").sent == 2 * 7 * 8


def test_one_rank_sends_nothing():
    assert routed_traffic([[3, 4]], 10, 0).sent == 0
    assert per_rank([3, 4], 1) == [7]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([[1, 2], [3, 4]], 0, 0), "hidden"),
        (([[1, 2], [3, 4]], 8, 2), "rank"),
        (([[1, 2], [3, -4]], 8, 0), "routed"),
    ],
)
def test_bad_input_names_the_value(args, message):
    with pytest.raises(ValueError, match=message):
        routed_traffic(*args)
