import pytest
import torch
from sklearn import datasets

from course_lib.data.digits import load_digits


def test_shapes_and_ranges():
    images, labels = load_digits("all")
    assert images.shape == (1797, 1, 8, 8)
    assert images.dtype == torch.float32
    assert (images.min(), images.max()) == (0, 1)
    assert labels.dtype == torch.int64
    assert labels.unique().tolist() == list(range(10))


def test_they_are_those_that_scikit_learn_loads():
    theirs, (images, labels) = datasets.load_digits(), load_digits("all")
    assert torch.equal(images.flatten(1) * 16, torch.from_numpy(theirs.data).float())
    assert labels.tolist() == theirs.target.tolist()


def test_the_split_is_complete_and_always_the_same():
    parts = [load_digits("train"), load_digits("test")]
    assert [len(labels) for _, labels in parts] == [1437, 360]
    together = torch.cat([images.flatten(1) for images, _ in parts])
    everything = load_digits("all")[0].flatten(1)
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, everything.tolist()))
    # Scores in the course depend on which images are for the test, so another split must not go unnoticed.
    assert (
        parts[1][1][:12].tolist()
        == load_digits("test")[1][:12].tolist()
        == [2, 8, 2, 6, 6, 7, 1, 9, 8, 5, 2, 8]
    )


def test_every_digit_is_in_the_test_part_about_as_often():
    counts = load_digits("test")[1].bincount()
    assert counts.min() >= 25
    assert counts.max() <= 47


def test_refuses_an_unknown_split():
    with pytest.raises(ValueError, match="split is 'validation'; choose 'train', 'test' or 'all'"):
        load_digits("validation")
