"""WordPiece cuts as the libraries do with the same vocabulary, and merges by its own rule and not by BPE's."""

import random
from fractions import Fraction
from itertools import pairwise

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from course_lib.data.docs import corpus
from course_lib.models.pretrained import load_tokenizer
from course_lib.text.wordpiece import UNKNOWN, WordPiece, score_pairs, split_words

HARD = "Unaffable, naïve! 12€ (snake_case) 笔记本 is here… 𠀀x ａｂ\tend"


def official(pieces):
    tokenizer = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def test_cut_as_the_library_with_the_same_vocabulary():
    ours = WordPiece.train(corpus()[:40_000], 350, least=2)
    assert len(ours.tokens) == 350
    text = corpus()[500_000:520_000]
    assert ours.encode(text) == official(ours.tokens).encode(text).ids
    assert any(ours.tokens[i].startswith("##") and len(ours.tokens[i]) > 4 for i in ours.encode(text))


def test_cut_as_bert_with_berts_own_vocabulary():
    library = load_tokenizer()
    vocabulary = library.get_vocab()
    ours = WordPiece([UNKNOWN, *sorted(vocabulary.keys() - {UNKNOWN}, key=vocabulary.__getitem__)])
    text = library.normalizer.normalize_str(HARD + corpus()[600_000:605_000])
    assert [ours.tokens[i] for i in ours.encode(text)] == library.encode(
        text, add_special_tokens=False
    ).tokens


def test_a_chinese_character_and_a_mark_are_words():
    assert split_words("我的laptop坏了!") == ["我", "的", "laptop", "坏", "了", "!"]
    spaced = normalizers.BertNormalizer(strip_accents=False, lowercase=False).normalize_str(HARD)
    assert split_words(HARD) == [w for w, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(spaced)]


@pytest.mark.parametrize("seed", range(3))
def test_each_merge_has_the_highest_score_by_brute_force(seed):
    draw = random.Random(seed)
    text = " ".join("".join(draw.choices("abc", k=draw.randint(1, 6))) for _ in range(30))
    start = len(WordPiece.train(text, 7).tokens)
    pieces = WordPiece.train(text, start + 4).tokens
    words = [[c if i == 0 else "##" + c for i, c in enumerate(w)] for w in text.split()]
    for new in pieces[start:]:
        together, alone = {}, {}
        for word in words:
            for piece in word:
                alone[piece] = alone.get(piece, 0) + 1
            for pair in pairwise(word):
                together[pair] = together.get(pair, 0) + 1
        scores = {(a, b): Fraction(n, alone[a] * alone[b]) for (a, b), n in together.items()}
        a, b = min(scores, key=lambda pair: (-scores[pair], pair))
        assert a + b.removeprefix("##") == new
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == (a, b):
                    word[i : i + 2] = [new]
                i += 1


def test_rare_pairs_whose_parts_are_never_apart_come_first():
    words = [(["a", "##b"], 100), (["a", "##c"], 100), (["q", "##u"], 1)]
    scores = score_pairs(words)
    assert max(scores, key=scores.get) == ("q", "##u")
    assert ("q", "##u") not in score_pairs(words, least=2)


def test_what_cannot_be_cut_is_unknown_as_a_whole():
    pieces = WordPiece([UNKNOWN, "un", "##able", "##do"])
    assert pieces.cut("undoable") == ["un", "##do", "##able"]
    assert pieces.cut("undoing") == [UNKNOWN]
    assert pieces.decode(pieces.encode("undoable un")) == "undoable un"


def test_a_vocabulary_smaller_than_the_characters_is_refused():
    with pytest.raises(ValueError, match="the single characters alone are 5 pieces"):
        WordPiece.train("ab ba", 3)
