import random

import pytest
import torch

from course_lib.data.docs import package_task
from course_lib.data.finetuning_tasks import (
    SWAPPED,
    WORDS,
    docstring_package,
    sentence_pieces,
    sentences,
    swap_two,
    word_order,
)
from course_lib.models.pretrained import load_tokenizer


def rows(part):
    """Each sample's word pieces as a tuple, without [CLS], [SEP] and padding."""
    return [tuple(row[mask][1:-1].tolist()) for row, mask in zip(part.tokens, part.mask, strict=True)]


def pieces_of(words):
    return tuple(piece for word in words for piece in word)


def test_sentences_are_thousands_of_different_ones_of_6_to_24_words():
    found = sentences()
    assert len(found) > 5000
    assert len({sentence.lower() for sentence in found}) == len(found)
    assert {len(sentence.split()) for sentence in found} == set(WORDS)


def test_half_of_each_part_is_swapped_once_and_no_sentence_is_in_two_parts():
    task = word_order(seed=3)
    in_order = {pieces_of(words): i for i, words in enumerate(sentence_pieces())}
    swapped = {}  # every sentence with every swap, except those that are themselves a sentence
    for i, words in enumerate(sentence_pieces()):
        for k in range(len(words) - 1):
            swapped.setdefault(pieces_of((*words[:k], words[k + 1], words[k], *words[k + 2 :])), set()).add(i)
    assert [len(task.validation.labels), len(task.test.labels)] == [1000, 1500]
    assert sum(len(part.labels) for part in task[:3]) == len(sentences())
    for part in task[:3]:
        assert part.labels.sum() == len(part.labels) // 2
        for row, label in zip(rows(part), part.labels.tolist(), strict=True):
            if len(row) < 62:  # a longer one is cut
                assert row in (swapped if label == SWAPPED else in_order)
    whole = [{tuple(sorted(row)) for row in rows(part)} for part in task[:3]]
    for a, b in [
        (0, 1),
        (0, 2),
        (1, 2),
    ]:  # the same words, in whatever order; a few are anagrams of each other
        assert len(whole[a] & whole[b]) < 0.01 * len(whole[b])


def test_the_tokens_are_those_of_minilm_and_the_seed_decides_the_split():
    task, again, other = word_order(seed=0), word_order(seed=0), word_order(seed=1)
    assert all(
        torch.equal(a, b)
        for part, same in zip(task[:3], again[:3], strict=True)
        for a, b in zip(part, same, strict=True)
    )
    assert not torch.equal(task.test.tokens, other.test.tokens)
    tokenizer = load_tokenizer()
    encoded = {tuple(tokenizer.encode(sentence).ids) for sentence in sentences()}
    kept = [
        tuple(row[mask].tolist())
        for row, mask, label in zip(*task.validation, strict=True)
        if label != SWAPPED and mask.sum() < 64
    ]
    assert len(kept) > 400
    assert all(row in encoded for row in kept)


def test_two_equal_words_are_never_swapped():
    words = ((1,), (1,), (2, 3), (1,))
    assert {swap_two(words, random.Random(seed)) for seed in range(20)} == {
        ((1,), (2, 3), (1,), (1,)),
        ((1,), (1,), (1,), (2, 3)),
    }


def test_the_packages_test_part_is_fixed_and_its_training_part_is_divided():
    a, b = docstring_package(seed=0), docstring_package(seed=1)
    train, test = package_task("train"), package_task("test")
    assert torch.equal(a.test.tokens, test.tokens)
    assert torch.equal(b.test.labels, test.labels)
    assert a.classes == train.packages
    for task in (a, b):
        assert sorted(rows(task.train) + rows(task.validation)) == sorted(rows(train))
        assert len(task.validation.labels) == len(train.labels) // 5
    assert not torch.equal(a.validation.tokens, b.validation.tokens)


def test_at_most_n_samples():
    task = word_order().first(7)
    assert [len(part.labels) for part in task[:3]] == [7, 7, 7]
    assert len(word_order().first(None).test.labels) == 1500


@pytest.mark.parametrize("sizes", [(0, 100), (100, 0), (100_000, 100)])
def test_refuses_parts_that_are_empty(sizes):
    with pytest.raises(ValueError, match="each needs at least 1"):
        word_order(0, *sizes)
