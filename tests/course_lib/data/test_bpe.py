"""Byte pair encoding equals the tokenizers library, merge by merge and token by token."""

import pytest
from tokenizers import Tokenizer, models, trainers

from course_lib.data.bpe import BPE, UNKNOWN, merge, split_words
from course_lib.data.docs import corpus


def official(text, vocab_size):
    """Their tokenizer, given our words one by one; its merges as pairs of texts."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[UNKNOWN], show_progress=False)
    tokenizer.train_from_iterator(split_words(text), trainer)
    return tokenizer


def merges_of(tokenizer):
    import json

    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def texts(bpe):
    return [(bpe.tokens[left], bpe.tokens[right]) for left, right in bpe.merges]


def test_equal_to_the_library_merge_by_merge_on_the_courses_corpus():
    text = corpus()[:250_000]
    ours, theirs = BPE.train(text, 600), official(text, 600)
    assert len(ours.merges) > 400
    assert texts(ours) == merges_of(theirs)
    assert ours.ids == theirs.get_vocab()
    other = corpus()[400_000:410_000] + " Straße, naïve, 東京!"
    assert ours.encode(other) == [i for word in split_words(other) for i in theirs.encode(word).ids]
    assert ours.decode(ours.encode(text)) == text
    again = BPE(ours.tokens[1 : 1 + len({*text} - {UNKNOWN})], texts(ours))
    assert again.ids == ours.ids
    assert again.encode(other) == ours.encode(other)


@pytest.mark.parametrize(
    "text",
    [
        "aaaaaaa aaa aa",
        "abcabc abc bcabca cab",
        "x",
        "ab" * 40,
        "the cat sat\n\n on  the mat",
        "ßü 東京 東",
        "a a a",
    ],
)
@pytest.mark.parametrize("size", [12, 40])
def test_small_texts_until_nothing_is_left_to_merge(text, size):
    size = max(size, 1 + len(set(text)))
    ours, theirs = BPE.train(text, size), official(text, size)
    assert texts(ours) == merges_of(theirs)
    assert ours.ids == theirs.get_vocab()
    assert ours.decode(ours.encode(text)) == text


def test_the_first_merges_of_a_text_by_hand():
    bpe = BPE.train("low low low lower lower newest newest widest", 14)
    # alphabet: space d e i l n o r s t w; "lo" stands 5 times, "ow" 5: l is before o
    assert texts(bpe)[:2] == [("l", "o"), ("lo", "w")]
    assert merge([1, 1, 1, 2, 1, 1], (1, 1), 9) == [9, 1, 2, 9]


def test_edges():
    empty = BPE.train("", 1)
    assert (empty.tokens, empty.encode(""), empty.decode([])) == ([UNKNOWN], [], "")
    assert empty.decode(empty.encode("ab")) == UNKNOWN * 2
    one = BPE.train("b", 9)
    assert one.encode("bbcb") == [1, 1, 0, 1]
    assert one.decode([1, 0]) == "b" + UNKNOWN
    with pytest.raises(ValueError, match="vocab_size is 3; the single characters alone are 4 tokens"):
        BPE.train("abc", 3)
    with pytest.raises(ValueError, match="token 2 does not exist; there are 2"):
        one.decode([1, 2])
    with pytest.raises(ValueError, match="token -1 does not exist"):
        one.decode([-1])


def test_bytes_leave_no_character_unknown():
    bpe = BPE.train("the theory of the 東京 thing", 262, byte_level=True)
    assert bpe.encode("z\x00é") == [122, 0, 0xC3, 0xA9]
    for text in ("the 東京", "🙂 naïve", "", "\n"):
        assert bpe.decode(bpe.encode(text)) == text
    assert bpe.decode([0xC3]) == UNKNOWN  # half a character
    assert len(bpe.tokens) == 262
    assert len(bpe.encode("the")) < 3
