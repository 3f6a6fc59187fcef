"""Byte pair encoding (Sennrich et al., arXiv:1508.07909): a vocabulary between characters and words.

It begins with single characters. The pair of neighbours that is most frequent becomes a token of its own, again and
again, until the vocabulary has its size. A text is encoded by the same merges in the order in which they were learned.

Only neighbours within a word are merged, so the training needs every *different* word once, with its count.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

Pair = tuple[int, int]

UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # token 0: a character that the training text did not have


def split_words(text: str) -> list[str]:
    """Words, runs of other characters, and white space. A single space belongs to what follows; nothing is lost."""
    return re.findall(r" ?\w+| ?[^\w\s]+|\s+", text)


def count_pairs(words: Iterable[tuple[Sequence[int], int]]) -> Counter[Pair]:
    """How often each two tokens are neighbours, in words given as tokens with the word's count."""
    counts: Counter[Pair] = Counter()
    for word, times in words:
        for pair in pairwise(word):
            counts[pair] += times
    return counts


def most_frequent(counts: Counter[Pair]) -> Pair | None:
    """The pair with the highest count; of several, the one with the smallest tokens. None: no neighbours are left."""
    highest = max(counts.values(), default=0)
    return min(pair for pair, times in counts.items() if times == highest) if highest else None


def merge(word: Sequence[int], pair: Pair, new: int) -> list[int]:
    """``word`` with ``new`` in place of each ``pair``, from left to right."""
    merged: list[int] = []
    for token in word:
        if merged and (merged[-1], token) == pair:
            merged[-1] = new
        else:
            merged.append(token)
    return merged


class BPE:
    """A trained tokenizer: text to tokens (integers) and back.

    Args:
        alphabet: single characters. They are the tokens from 1 on, and token 0 stands for all other characters.
        merges: pairs of texts, in the order in which they were learned. Each makes the token of the joined text.
        byte_level: characters are the 256 bytes of UTF-8, tokens 0 to 255, so none is unknown (as in GPT-2).
    """

    def __init__(
        self, alphabet: Iterable[str], merges: Iterable[tuple[str, str]], byte_level: bool = False
    ) -> None:
        self.byte_level = byte_level
        self.tokens = [*alphabet] if byte_level else [UNKNOWN, *alphabet]  # the text of each token
        self.ids = {text: token for token, text in enumerate(self.tokens)}
        self.merges: dict[Pair, int] = {}  # each pair's place in the order in which they were learned
        for left, right in merges:
            self._add_merge((self.ids[left], self.ids[right]))
        self._encoded: dict[str, list[int]] = {}  # words met before

    @classmethod
    def train(cls, text: str, vocab_size: int, byte_level: bool = False) -> BPE:
        """Learn merges until there are ``vocab_size`` tokens, or no two tokens are neighbours.

        Raises:
            ValueError: the vocabulary cannot even hold the single characters.
        """
        counts = Counter(_characters(word, byte_level) for word in split_words(text))
        letters = (
            map(chr, range(256)) if byte_level else sorted({c for word in counts for c in word} - {UNKNOWN})
        )
        bpe = cls(letters, (), byte_level)
        if vocab_size < len(bpe.tokens):
            raise ValueError(
                f"vocab_size is {vocab_size}; the single characters alone are {len(bpe.tokens)} tokens, "
                "so choose at least as many."
            )
        words = [([bpe.ids.get(c, 0) for c in word], times) for word, times in counts.items()]
        pairs = count_pairs(words)
        where: dict[Pair, set[int]] = defaultdict(set)  # the words that a pair is in, or once was
        for i, (word, _) in enumerate(words):
            for pair in pairwise(word):
                where[pair].add(i)

        while len(bpe.tokens) < vocab_size and (pair := most_frequent(pairs)):
            new = bpe._add_merge(pair)
            for i in where.pop(pair):  # all other words stay as they are, and so do their counts
                word, times = words[i]
                merged = merge(word, pair, new)
                words[i] = merged, times
                for old in pairwise(word):
                    pairs[old] -= times
                for changed in pairwise(merged):
                    pairs[changed] += times
                    where[changed].add(i)
        return bpe

    def _add_merge(self, pair: Pair) -> int:
        text = self.tokens[pair[0]] + self.tokens[pair[1]]
        if text not in self.ids:  # two pairs can join to the same text
            self.ids[text] = len(self.tokens)
            self.tokens.append(text)
        self.merges[pair] = len(self.merges)
        return self.ids[text]

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; 0 for a character that the training text did not have."""
        return [token for word in split_words(text) for token in self._encode_word(word)]

    def _encode_word(self, word: str) -> list[int]:
        if word not in self._encoded:
            tokens = [self.ids.get(c, 0) for c in _characters(word, self.byte_level)]
            # Of the pairs in the word, the one that was learned first is merged first.
            while known := self.merges.keys() & set(pairwise(tokens)):
                pair = min(known, key=self.merges.__getitem__)
                tokens = merge(tokens, pair, self.ids[self.tokens[pair[0]] + self.tokens[pair[1]]])
            self._encoded[word] = tokens
        return self._encoded[word]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; an unknown character, or a cut one, comes back as the replacement character."""
        for token in tokens:
            if not 0 <= token < len(self.tokens):
                raise ValueError(f"token {token} does not exist; there are {len(self.tokens)}, from 0 on.")
        text = "".join(self.tokens[token] for token in tokens)
        return text.encode("latin-1", "replace").decode(errors="replace") if self.byte_level else text


def _characters(word: str, byte_level: bool) -> str:
    """The word's characters, or one character for each byte of it."""
    return word.encode().decode("latin-1") if byte_level else word
