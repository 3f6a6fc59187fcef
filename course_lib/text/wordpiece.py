"""WordPiece (Schuster and Nakajima, 2012), the tokenizer of BERT: merges by likelihood, cuts by the longest match.

It begins with single characters, as BPE does. ``##`` marks a piece that stands inside a word. A step merges the pair of
neighbours with the highest score, count(a, b) / (count(a) · count(b)). BPE asks which pair is most frequent; this asks
whose two pieces meet far more often than they would by chance, so a rare pair whose pieces are never apart comes first.

A word is cut from the left: the longest piece of the vocabulary with which it begins, then the same with the rest.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

Pair = tuple[str, str]

INSIDE = "##"
UNKNOWN = "[UNK]"


def is_chinese(character: str) -> bool:
    """A Chinese character, as BERT sees it: one of the blocks of CJK ideographs. Japanese kana are none."""
    point = ord(character)
    return (
        0x3400 <= point <= 0x4DBF
        or 0x4E00 <= point <= 0x9FFF
        or 0xF900 <= point <= 0xFAFF
        or (0x20000 <= point <= 0x2FA1F)
    )


def is_punctuation(character: str) -> bool:
    """As BERT sees it: Unicode's punctuation, and every visible ASCII character that is no letter or digit."""
    visible = 0x21 <= ord(character) <= 0x7E
    return (visible and not character.isalnum()) or unicodedata.category(character).startswith("P")


def split_words(text: str) -> list[str]:
    """The words between white space; a Chinese character and a punctuation mark is a word of its own."""
    return "".join(f" {c} " if is_chinese(c) or is_punctuation(c) else c for c in text).split()


def letters(word: str) -> list[str]:
    """``"low"`` -> ``["l", "##o", "##w"]``."""
    return [*word[:1], *(INSIDE + c for c in word[1:])]


def join(a: str, b: str) -> str:
    """The piece that two neighbours make; the second one is always inside the word."""
    return a + b.removeprefix(INSIDE)


def score_pairs(words: Iterable[tuple[list[str], int]], least: int = 1) -> dict[Pair, float]:
    """count(a, b) / (count(a) · count(b)) of each pair of neighbours, in words given as pieces with their count.

    Args:
        least: a pair that stands in the text less often is left out. At 1, two characters that occur once, and
            beside each other, have the highest score that there is.
    """
    pieces: Counter[str] = Counter()
    pairs: Counter[Pair] = Counter()
    for word, times in words:
        for piece in word:
            pieces[piece] += times
        for pair in pairwise(word):
            pairs[pair] += times
    return {(a, b): n / (pieces[a] * pieces[b]) for (a, b), n in pairs.items() if n >= least}


def merge(word: list[str], pair: Pair) -> list[str]:
    """``word`` with the joined piece in place of each ``pair``, from left to right."""
    merged: list[str] = []
    for piece in word:
        if merged and (merged[-1], piece) == pair:
            merged[-1] = join(*pair)
        else:
            merged.append(piece)
    return merged


class WordPiece:
    """A vocabulary of pieces: text to tokens (integers) and back.

    Args:
        pieces: the text of each token, in order. The first is the one for words that cannot be cut.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        self.tokens = list(pieces)
        self.ids = {piece: token for token, piece in enumerate(self.tokens)}

    @classmethod
    def train(cls, text: str, vocab_size: int, least: int = 1) -> WordPiece:
        """Merge until there are ``vocab_size`` pieces, or no pair stands in the text ``least`` times.

        Of several pairs with the highest score, the first in the order of their texts is merged.

        Raises:
            ValueError: the vocabulary cannot even hold the single characters.
        """
        words = [(letters(word), times) for word, times in Counter(split_words(text)).items()]
        pieces = [UNKNOWN, *sorted({piece for word, _ in words for piece in word})]
        if vocab_size < len(pieces):
            raise ValueError(
                f"vocab_size is {vocab_size}; the single characters alone are {len(pieces)} pieces, "
                "so choose at least as many."
            )
        while len(pieces) < vocab_size and (scores := score_pairs(words, least)):
            best = min(scores, key=lambda pair: (-scores[pair], pair))
            words = [(merge(word, best) if best[0] in word else word, times) for word, times in words]
            pieces.append(join(*best))
        return cls(dict.fromkeys(pieces))  # two pairs can join to the same piece

    def cut(self, word: str) -> list[str]:
        """The longest piece first; a word of which any part is not in the vocabulary is unknown as a whole."""
        pieces, start = [], 0
        while start < len(word):
            mark = INSIDE if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if mark + word[start:end] in self.ids), None)
            if end is None:
                return [self.tokens[0]]
            pieces.append(mark + word[start:end])
            start = end
        return pieces

    def encode(self, text: str) -> list[int]:
        return [self.ids[piece] for word in split_words(text) for piece in self.cut(word)]

    def decode(self, tokens: Iterable[int]) -> str:
        """Words with a space between them: what stood between them in the text is lost."""
        return " ".join(self.tokens[token] for token in tokens).replace(f" {INSIDE}", "")
