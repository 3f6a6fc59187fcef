"""What the ends of a model send where the vocabulary is cut."""

import pytest

from simulator.predict.vocabulary_traffic import embedding_traffic, head_traffic, loss_traffic


def test_each_end_sends_one_activation_there_and_back():
    n = 4096 * 512 * 2  # bytes of an activation
    ring = 2 * 7 / 8 * n  # an all-reduce on 8 ranks
    assert embedding_traffic(4096, 512, 8).sent == head_traffic(4096, 512, 8).sent == ring
    split = embedding_traffic(4096, 512, 8, sequence_parallel=True)
    assert (split.of("reduce-scatter").sent, split.of("all-gather").sent) == (ring / 2, ring / 2)
    head = head_traffic(4096, 512, 8, sequence_parallel=True)
    assert (head.of("reduce-scatter").calls, head.of("all-gather").calls) == (1, 2)
    assert head_traffic(4096, 512, 8, sequence_parallel=True, regather=False).sent == ring


def test_the_loss_sends_three_numbers_a_token_and_the_logits_would_be_thousands():
    loss = loss_traffic(4096, 8)
    assert [(row.calls, row.payload) for row in loss.rows] == [(2, 3 * 4 * 4096)]
    assert loss_traffic(4096, 8, label_smoothing=True).rows[0].payload == 4 * 4 * 4096


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_exact_figures_of_all_ranks_have_the_mean_of_the_closed_form(sequence_parallel):
    for traffic in (embedding_traffic, head_traffic):
        exact = [traffic(5, 7, 4, 2, r, sequence_parallel=sequence_parallel).sent for r in range(4)]
        assert sum(exact) / 4 == pytest.approx(traffic(5, 7, 4, 2, sequence_parallel=sequence_parallel).sent)
    assert sum(loss_traffic(5, 4, 4, r).sent for r in range(4)) / 4 == pytest.approx(loss_traffic(5, 4).sent)


def test_one_rank_sends_nothing():
    assert embedding_traffic(4, 8, 1).rows == head_traffic(4, 8, 1).rows == loss_traffic(4, 1).rows == ()


def test_refuses_no_tokens():
    with pytest.raises(ValueError, match="tokens must be a whole number of at least 1, not 0"):
        loss_traffic(0, 2)
