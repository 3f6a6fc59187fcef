import math
from collections import Counter
from itertools import permutations
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch

from course_lib.data import denoising
from course_lib.data.denoising import (
    WORD_PIECES,
    denoising_samples,
    documentation_windows,
    mask_words,
    masked_samples,
    permute_sentences,
    span_lengths,
    text_infilling,
)
from course_lib.models.pretrained import load_tokenizer

MASK, STOP = 1000, 999


def text(n, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(900, size=n))


@pytest.mark.parametrize("n", [0, 1, 2, 5, 61, 1000])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_what_was_taken_out_filled_in_again_is_the_text(n, ratio):
    for seed in range(5):
        tokens = text(n, seed)
        source, removed = text_infilling(tokens, MASK, np.random.default_rng(seed), ratio=ratio)
        spans = iter(removed)
        filled = [next(spans) if token == MASK else token[None] for token in source]
        assert torch.equal(torch.cat(filled or [source]), tokens)
        assert sum(map(len, removed)) == round(ratio * n), "exactly so many tokens are masked"
        assert int((source == MASK).sum()) == len(removed), "each span is one mask"
        assert len(source) == n - round(ratio * n) + len(removed)


def test_lengths_are_poisson_with_mean_3_and_empty_spans_put_a_mask_in():
    lengths = span_lengths(200_000, 0.3, 3.0, np.random.default_rng(0))
    counts, spans = Counter(lengths), len(lengths)
    assert np.mean(lengths) == pytest.approx(3, abs=4 * math.sqrt(3 / spans))
    for length in range(8):
        expected = math.exp(-3) * 3**length / math.factorial(length)
        error = math.sqrt(expected * (1 - expected) / spans)
        assert counts[length] / spans == pytest.approx(expected, abs=4 * error), length
    source, removed = text_infilling(text(200_000), MASK, np.random.default_rng(0))
    assert [len(span) for span in removed].count(0) == pytest.approx(math.exp(-3) * len(removed), rel=0.1)
    assert len(source) == 140_000 + len(removed)


def test_masks_are_anywhere_with_the_same_probability():
    rng, places, times = np.random.default_rng(0), Counter(), 3000
    for _ in range(times):
        source, _ = text_infilling(torch.arange(20), MASK, rng, ratio=0.3, mean=1e9)  # one span of 6 tokens
        places[int((source == MASK).nonzero())] += 1
    assert sorted(places) == list(range(15)), "before, between and behind the 14 tokens that stay"
    share = 1 / 15
    assert max(places.values()) / times == pytest.approx(share, abs=4 * math.sqrt(share / times))
    assert min(places.values()) / times == pytest.approx(share, abs=4 * math.sqrt(share / times))


def test_sentences_change_places_and_stay_whole():
    tokens = torch.tensor([1, 2, STOP, 3, STOP, STOP, 4, 5])  # the last has no full stop
    sentences = [(1, 2, STOP), (3, STOP), (STOP,), (4, 5)]
    orders = {sum(order, ()) for order in permutations(sentences)}
    rng, times = np.random.default_rng(0), 4800
    counts = Counter(tuple(permute_sentences(tokens, STOP, rng).tolist()) for _ in range(times))
    assert counts.keys() == orders, "every order, and nothing else"
    for count in counts.values():
        assert count / times == pytest.approx(1 / 24, abs=4.5 * math.sqrt(1 / 24 / times))
    assert permute_sentences(tokens[:0], STOP, rng).tolist() == []
    assert permute_sentences(tokens[:2], STOP, rng).tolist() == [1, 2]


def test_of_the_words_that_bert_is_asked_for_80_percent_are_masked_10_drawn_and_10_as_they_were():
    tokens = text(400_000).view(400, 1000)
    inputs, targets = mask_words(tokens, MASK, 900, np.random.default_rng(0))
    asked = targets != -100
    n = int(asked.sum())
    assert torch.equal(targets[asked], tokens[asked])
    assert torch.equal(inputs[~asked], tokens[~asked]), "what is not asked for stays"
    assert asked.float().mean() == pytest.approx(0.15, abs=4 * math.sqrt(0.15 * 0.85 / 400_000))
    masked = inputs[asked] == MASK
    same = inputs[asked] == tokens[asked]
    assert masked.float().mean() == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / n))
    assert same.float().mean() == pytest.approx(0.1 + 0.1 / 900, abs=4 * math.sqrt(0.09 / n))
    assert inputs.max() == MASK
    some = torch.zeros_like(tokens, dtype=torch.bool)
    some[:, :10] = True
    _, targets = mask_words(tokens, MASK, 900, np.random.default_rng(0), ratio=1.0, may_be_asked=some)
    assert torch.equal(targets != -100, some)


@pytest.fixture
def short(monkeypatch):
    """Of the documentation, a few topics: as much noise, and a fortieth of the time."""
    text = load_tokenizer().encode(topics["numeric-types"] + topics["class"], add_special_tokens=False).ids
    monkeypatch.setattr(denoising, "corpus_tokens", {"wordpiece": torch.tensor(text)}.__getitem__)
    for kept in (denoising_samples, masked_samples):
        kept.cache_clear()
    yield text
    for kept in (denoising_samples, masked_samples):
        kept.cache_clear()


def test_the_documentation_with_noise(short):
    windows = documentation_windows(40)
    assert windows[:, 1:-1].flatten().tolist() == short[: windows[:, 1:-1].numel()]
    assert len(windows) == (len(short) - 1) // 38 > 50
    tokenizer = load_tokenizer()
    names = {"padding": "[PAD]", "start": "[CLS]", "end": "[SEP]", "mask": "[MASK]", "full_stop": "."}
    assert {name: tokenizer.id_to_token(getattr(WORD_PIECES, name)) for name in names} == names
    assert tokenizer.get_vocab_size() == WORD_PIECES.words

    tokens, decoder_tokens, mask, targets = denoising_samples(40, permute=False)
    assert torch.equal(targets, windows)
    assert torch.equal(decoder_tokens[:, 1:], targets[:, :-1])
    assert (decoder_tokens[:, 0] == WORD_PIECES.end).all()
    assert (tokens[:, 0] == WORD_PIECES.start).all()
    lengths = mask.sum(1)
    assert torch.equal(mask, torch.arange(40) < lengths[:, None]), "padding stands at the end"
    assert not tokens[~mask].any()
    assert (tokens.gather(1, lengths[:, None] - 1) == WORD_PIECES.end).all()
    for source, text_ in zip(tokens.tolist(), windows.tolist(), strict=True):
        left = iter(text_)
        kept = [token for token in source if token not in (WORD_PIECES.mask, WORD_PIECES.padding)]
        assert all(token in left for token in kept), "what stays is in the order of the text"
        assert len(text_) - len(kept) == round(0.3 * 38)

    assert torch.equal(denoising_samples.__wrapped__(40, permute=False).tokens, tokens)
    shuffled = denoising_samples(40)
    assert torch.equal(shuffled.targets, targets), "the text in order is to be written"
    kept = [
        sorted(t for t in row if t not in (WORD_PIECES.mask, WORD_PIECES.padding))
        for row in shuffled.tokens.tolist()
    ]
    assert all(not Counter(few) - Counter(all_) for few, all_ in zip(kept, windows.tolist(), strict=True))
    assert not torch.equal(denoising_samples(40, 1).tokens, shuffled.tokens)
    # With a token to hide among four, every twentieth draw puts in a mask too many, and is drawn again.
    assert denoising_samples(6, ratio=0.25).mask.sum(1).max() == 6


def test_the_documentation_with_masked_words(short):
    tokens, targets = masked_samples(40, seed=3)
    windows = documentation_windows(40)
    asked = targets != -100
    assert torch.equal(targets[asked], windows[asked])
    assert not asked[:, [0, -1]].any(), "[CLS] and [SEP] are never asked for"
    assert torch.equal(tokens[~asked], windows[~asked])
    assert asked[:, 1:-1].float().mean() == pytest.approx(0.15, abs=4 * math.sqrt(0.15 * 0.85 / len(short)))
    assert torch.equal(masked_samples.__wrapped__(40, seed=3).tokens, tokens)
    assert not torch.equal(masked_samples(40, seed=4).tokens, tokens)


def test_refuses_what_makes_no_noise():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"ratio is 1\.5"):
        text_infilling(text(5), MASK, rng, ratio=1.5)
    with pytest.raises(ValueError, match="mean is 0"):
        text_infilling(text(5), MASK, rng, mean=0)
    with pytest.raises(ValueError, match="holds the mask token 1000"):
        text_infilling(torch.tensor([MASK]), MASK, rng)
    with pytest.raises(ValueError, match=r"ratio is -0\.1"):
        mask_words(text(5), MASK, 900, rng, ratio=-0.1)
    with pytest.raises(ValueError, match="length is 3"):
        documentation_windows(3)
