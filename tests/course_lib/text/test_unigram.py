"""Unigram: Viterbi and EM equal brute force over all cuts, and the libraries cut the same with the same pieces."""

import math
import random
from collections import Counter
from itertools import combinations, pairwise

import pytest
from tokenizers import Tokenizer, models

from course_lib.data.docs import corpus
from course_lib.text.unigram import Unigram, expected_counts, fit, likeliest_cut, missed, split_words


def all_cuts(word):
    for k in range(len(word)):
        for places in combinations(range(1, len(word)), k):
            edges = [0, *places, len(word)]
            yield [word[a:b] for a, b in pairwise(edges)]


def random_pieces(seed):
    draw = random.Random(seed)
    pieces = {*"abc", *("".join(draw.choices("abc", k=draw.randint(2, 4))) for _ in range(12))}
    shares = {piece: draw.random() for piece in sorted(pieces)}
    return {piece: math.log(p / sum(shares.values())) for piece, p in shares.items()}, draw


@pytest.mark.parametrize("seed", range(5))
def test_viterbi_is_the_best_of_all_cuts(seed):
    log_p, draw = random_pieces(seed)
    for _ in range(20):
        word = "".join(draw.choices("abc", k=draw.randint(1, 9)))
        scores = [sum(log_p[p] for p in cut) for cut in all_cuts(word) if all(p in log_p for p in cut)]
        cut, score = likeliest_cut(word, log_p, 4)
        assert score == pytest.approx(max(scores))
        assert sum(log_p[p] for p in cut) == pytest.approx(score)
        assert "".join(cut) == word


@pytest.mark.parametrize("seed", range(3))
def test_expected_counts_are_those_of_all_cuts(seed):
    log_p, draw = random_pieces(seed)
    words = Counter("".join(draw.choices("abc", k=draw.randint(1, 7))) for _ in range(12))
    counts, likelihood = dict.fromkeys(log_p, 0.0), 0.0
    for word, times in words.items():
        cuts = {
            tuple(c): math.exp(sum(log_p[p] for p in c)) for c in all_cuts(word) if all(p in log_p for p in c)
        }
        likelihood += times * math.log(sum(cuts.values()))
        for cut, p in cuts.items():
            for piece in cut:
                counts[piece] += times * p / sum(cuts.values())
    found, found_likelihood = expected_counts(words, log_p)
    assert found == pytest.approx(counts)
    assert found_likelihood == pytest.approx(likelihood)


def test_em_never_lowers_the_likelihood():
    log_p, draw = random_pieces(7)
    words = Counter("".join(draw.choices("abc", k=draw.randint(1, 7))) for _ in range(40))
    before = expected_counts(words, log_p)[1]
    for _ in range(5):
        log_p = fit(words, log_p, rounds=1)
        assert sum(map(math.exp, log_p.values())) == pytest.approx(1)
        after = expected_counts(words, log_p)[1]
        assert after > before - 0.1  # an unused piece keeps a share of a thousandth
        before = after


def test_what_is_missed_least_costs_no_likelihood():
    log_p = {p: math.log(x) for p, x in {"a": 0.3, "b": 0.3, "ab": 0.35, "ba": 0.05}.items()}
    falls = missed({"ab": 10, "a": 3}, log_p)
    assert falls["ba"] == 0  # no likeliest cut uses it
    assert falls["ab"] == pytest.approx(10 * (log_p["ab"] - log_p["a"] - log_p["b"]))


def test_trained_on_the_corpus_it_cuts_as_the_library_does():
    text = corpus()[:30_000]
    ours = Unigram.train(text, 300, seeds=900, keep=0.6)
    assert len(ours.tokens) == 300
    assert {*text.replace(" ", "").replace("\n", "")} <= {*ours.tokens}
    library = Tokenizer(models.Unigram([("<unk>", -100.0), *ours.log_p.items()], unk_id=0))
    for word in {*split_words(corpus()[700_000:710_000])}:
        if set(word) <= ours.ids.keys():
            theirs = library.encode(word).tokens
            score = sum(ours.log_p[p] for p in ours.cut(word))
            assert sum(ours.log_p[p] for p in theirs) == pytest.approx(score)
    assert ours.decode(ours.encode(" a\nclass  of the")) == "a class of the"
    assert ours.cut("▁the猫") == ["▁the", "猫"]
    assert ours.encode("猫")[-1] == -1


def test_sentencepiece_makes_nearly_the_same_vocabulary(tmp_path):
    """Its seeds come from a suffix array, so its pieces are not the same ones; most are."""
    sentencepiece = pytest.importorskip("sentencepiece")
    text = corpus()[:100_000]
    (tmp_path / "text").write_text(text)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "model"), model_type="unigram",
        vocab_size=300, normalization_rule_name="identity", minloglevel=3, character_coverage=1.0,
        split_by_unicode_script=False, split_by_number=False,
    )  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "model.model"))
    vocabulary = {theirs.id_to_piece(i) for i in range(theirs.vocab_size())}
    ours = Unigram.train(text, 300)
    assert len(vocabulary & ours.ids.keys()) > 200
    other = corpus()[800_000:820_000]
    assert len(ours.encode(other)) == pytest.approx(len(theirs.encode(other)), rel=0.1)


def test_a_vocabulary_smaller_than_the_characters_is_refused():
    with pytest.raises(ValueError, match="the single characters alone are 3 pieces"):
        Unigram.train("ab ba", 2)
