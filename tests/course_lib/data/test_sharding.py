import itertools

import numpy as np
import pytest
import torch

from course_lib.data.sharding import batches, batches_of_like_length, shard_indices, shuffled, split_range

SIZES = [(12, 4), (13, 4), (10, 3), (5, 8), (1, 1), (0, 2)]


@pytest.mark.parametrize(("n", "ranks"), SIZES)
def test_keep_covers_every_sample_exactly_once(n, ranks):
    shards = [shard_indices(n, rank, ranks) for rank in range(ranks)]
    assert sorted(torch.cat(shards).tolist()) == list(range(n))
    lengths = [len(shard) for shard in shards]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(("n", "ranks"), SIZES)
def test_drop_is_equal_and_disjoint(n, ranks):
    shards = [shard_indices(n, rank, ranks, remainder="drop") for rank in range(ranks)]
    together = torch.cat(shards).tolist()
    assert {len(shard) for shard in shards} == {n // ranks}
    assert len(set(together)) == len(together) == n - n % ranks
    assert set(together) <= set(range(n))


@pytest.mark.parametrize(("n", "ranks"), SIZES)
def test_pad_is_equal_and_complete(n, ranks):
    shards = [shard_indices(n, rank, ranks, remainder="pad") for rank in range(ranks)]
    together = torch.cat(shards).tolist()
    assert {len(shard) for shard in shards} == {-(-n // ranks)}
    assert set(together) == set(range(n))
    assert together[:n] == shuffled(n).tolist()
    assert together[n:] == shuffled(n).tolist()[: len(together) - n] or n < ranks


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else():
    orders = {tuple(shuffled(50, seed, epoch).tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    torch.manual_seed(1)
    first = shard_indices(50, 1, 3, seed=4, epoch=2)
    torch.manual_seed(2)
    assert torch.equal(first, shard_indices(50, 1, 3, seed=4, epoch=2))


@pytest.mark.parametrize(("batch_size", "ranks"), [(8, 1), (8, 4), (7, 3), (5, 5), (50, 2)])
def test_the_ranks_batches_together_are_the_batch_of_one_device(batch_size, ranks):
    data = (torch.randn(50, 2, 3), torch.arange(50))
    one_device = list(batches(data, batch_size, seed=3, epochs=2))
    parts = [list(batches(data, batch_size, seed=3, epochs=2, rank=r, ranks=ranks)) for r in range(ranks)]
    assert len(one_device) == 2 * (50 // batch_size) == len(parts[0])
    for step, (inputs, targets) in enumerate(one_device):
        assert len(inputs) == batch_size
        assert torch.equal(torch.cat([part[step][0] for part in parts]), inputs)
        assert torch.equal(torch.cat([part[step][1] for part in parts]), targets)
        assert torch.equal(data[0][targets], inputs)
    sizes = [len(part[0][0]) for part in parts]
    assert sizes == [len(split_range(batch_size, rank, ranks)) for rank in range(ranks)]


def test_batches_of_like_length_meet_each_sample_once_an_epoch_and_hold_little_padding():
    lengths = torch.from_numpy(np.random.default_rng(0).integers(4, 64, 101))
    data = torch.arange(101), lengths
    drawn = list(itertools.islice(batches_of_like_length(data, lengths, 4, seed=3, pool=5), 75))
    epochs = [torch.cat([samples for samples, _ in drawn[i : i + 25]]).tolist() for i in (0, 25, 50)]
    assert all(len(set(epoch)) == 100 for epoch in epochs)  # the one left over differs
    assert epochs[0] != epochs[1]
    again = list(itertools.islice(batches_of_like_length(data, lengths, 4, seed=3, pool=5), 75))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(drawn, again, strict=True))
    assert all(torch.equal(lengths[samples], own) for samples, own in drawn)

    def padded(found):
        return sum(4 * own.max().item() for _, own in found)

    plain = list(itertools.islice(batches(data, 4, seed=3), 75))
    assert padded(drawn) < 1.25 * sum(own.sum().item() for _, own in drawn) < 0.9 * padded(plain)
    longest = [own.max() for _, own in drawn[:25]]
    assert longest != sorted(longest), "short and long batches take turns"


def test_an_epoch_meets_each_sample_once_and_the_next_one_in_another_order():
    steps = batches((torch.arange(12),), 4)  # without end
    first, second = (torch.cat([next(steps)[0] for _ in range(3)]).tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second
    assert len(list(itertools.islice(steps, 100))) == 100


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shard_indices(9, 3, 3), "rank is 3; with 3 ranks it runs from 0 to 2"),
        (lambda: shard_indices(9, -1, 3), "rank is -1"),
        (lambda: shard_indices(9, 0, 0), "ranks is 0"),
        (
            lambda: shard_indices(9, 0, 2, remainder="wrap"),
            "remainder is 'wrap'; choose one of keep, drop, pad",
        ),
        (
            lambda: batches((torch.zeros(9),), 10),
            "batch_size is 10; it must lie between 1 ranks and 9 samples",
        ),
        (lambda: batches((torch.zeros(9),), 2, ranks=3), "batch_size is 2; it must lie between 3 ranks"),
        (lambda: batches((torch.zeros(9), torch.zeros(8)), 2), r"lengths \[9, 8\]; they must be equal"),
    ],
)
def test_refuses_with_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
