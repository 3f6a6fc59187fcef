"""No sample is seen twice in an epoch or left out, whatever happens to the number of ranks: tested by counting."""

import random
from collections import Counter

import pytest
import torch

from course_lib.elastic.sampler import ElasticSampler


@pytest.mark.parametrize(("samples", "batch_size"), [(103, 10), (100, 10), (7, 7), (7, 1), (10, 3)])
def test_each_epoch_has_each_sample_once_while_ranks_come_and_go(samples, batch_size):
    choose = random.Random(samples)
    sampler, epochs = ElasticSampler(samples, batch_size, seed=5), [Counter() for _ in range(3)]
    while sampler.epoch < 3:
        ranks = choose.choice([1, 2, 3, 4, 5, 12])
        slices = [sampler.batch(rank, ranks) for rank in range(ranks)]
        assert max(map(len, slices)) - min(map(len, slices)) <= 1
        epochs[sampler.epoch].update(torch.cat(slices).tolist())
        if choose.random() < 0.3:  # stopped, and taken up by a new sampler
            state, sampler = sampler.state_dict(), ElasticSampler(samples, batch_size, seed=5)
            sampler.load_state_dict(state)
        sampler.advance()
    for counted in epochs:
        assert counted == Counter(range(samples))


def test_the_order_is_that_of_one_device_and_differs_between_epochs_and_seeds():
    one, four = ElasticSampler(50, 8, seed=1), ElasticSampler(50, 8, seed=1)
    first = one.global_batch()
    for _ in range(20):
        together = torch.cat([four.batch(rank, 4) for rank in range(4)])
        assert torch.equal(one.next_batch(0, 1), together)
        four.advance()
    assert not torch.equal(first, ElasticSampler(50, 8, seed=2).global_batch())
    assert one.state_dict() == four.state_dict()
    assert one.epoch == 2


def test_a_step_that_failed_is_repeated_with_the_same_samples():
    sampler = ElasticSampler(50, 8)
    assert torch.equal(sampler.batch(1, 4), sampler.batch(1, 4))
    assert len(sampler.batch(0, 3)) == 3
    assert len(sampler.batch(2, 3)) == 2


def test_wrong_arguments_are_told():
    for size in (0, 11):
        with pytest.raises(ValueError, match="between 1 and 10 samples"):
            ElasticSampler(10, size)
    with pytest.raises(ValueError, match="seed is 0 here; the saved sampler has 3"):
        ElasticSampler(10, 2).load_state_dict(ElasticSampler(10, 2, seed=3).state_dict())
    with pytest.raises(ValueError, match="rank is 4"):
        ElasticSampler(10, 2).batch(4, 4)
