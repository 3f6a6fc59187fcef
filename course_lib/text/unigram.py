"""Unigram (Kudo, arXiv:1804.10959), the tokenizer of T5: a probability for each piece, and the likeliest cut.

The probability of a cut is the product of its pieces' probabilities. Training goes down, not up: it begins with all
frequent substrings, fits the probabilities by EM, and takes out the pieces that the text misses least, again and again.

White space belongs to the word behind it, written as ``▁``. Single characters always stay, so every word of the
training text can be cut. A character that was never seen is a piece of its own, with a very small probability.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

SPACE = "▁"
NEVER_SEEN = (
    10.0  # an unknown character's log probability lies this far below the smallest, as in SentencePiece
)

UNUSED = 1e-3  # a piece that no cut uses keeps this count: a character must stay, though its words have better cuts

Words = Mapping[str, int]  # each different word with its count


def split_words(text: str) -> list[str]:
    """The words between white space, each with ``▁`` in front of it."""
    return [SPACE + word for word in text.split()]


def parts(word: str, log_p: Mapping[str, float], longest: int) -> Iterator[tuple[int, int, float]]:
    """``(start, end, log probability)`` of each piece that stands in ``word``, by its end."""
    for end in range(1, len(word) + 1):
        for start in range(max(0, end - longest), end):
            if (p := log_p.get(word[start:end])) is not None:
                yield start, end, p


def likeliest_cut(word: str, log_p: Mapping[str, float], longest: int) -> tuple[list[str], float]:
    """Viterbi: the pieces of the likeliest cut, and its log probability (minus infinity: there is no cut).

    ``best[i]`` is the best that can be done with the first i characters. A longer start never needs another way to
    cut a shorter one, so one pass over the ends is enough for all 2^(n-1) cuts of n characters.
    """
    best = [0.0] + [-math.inf] * len(word)
    begins = [0] * (len(word) + 1)  # where the last piece of that best cut begins
    for start, end, p in parts(word, log_p, longest):
        if best[start] + p > best[end]:
            best[end], begins[end] = best[start] + p, start
    if best[-1] == -math.inf:
        return [], -math.inf
    cut, end = [], len(word)
    while end:
        cut.append(word[begins[end] : end])
        end = begins[end]
    return cut[::-1], best[-1]


def expected_counts(words: Words, log_p: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """EM's first half: how often each piece is used, over all cuts of all words, and the text's log likelihood.

    A word counts once. Each of its cuts has a share of that, its part of the word's probability. ``before[i]`` adds up
    the probabilities of all cuts of the first i characters, ``after[i]`` of all cuts of the rest.
    """
    longest = max(map(len, log_p))
    counts, likelihood = dict.fromkeys(log_p, 0.0), 0.0
    for word, times in words.items():
        pieces = [(start, end, math.exp(p)) for start, end, p in parts(word, log_p, longest)]
        before = [1.0] + [0.0] * len(word)
        after = [0.0] * len(word) + [1.0]
        for start, end, p in pieces:
            before[end] += before[start] * p
        for start, end, p in sorted(pieces, reverse=True):
            after[start] += p * after[end]
        for start, end, p in pieces:
            counts[word[start:end]] += times * before[start] * p * after[end] / before[-1]
        likelihood += times * math.log(before[-1])
    return counts, likelihood


def fit(words: Words, log_p: Mapping[str, float], rounds: int = 2) -> dict[str, float]:
    """EM: count with the probabilities, make them the shares of the counts. The likelihood never falls."""
    for _ in range(rounds):
        counts, _ = expected_counts(words, log_p)
        counts = {piece: max(n, UNUSED) for piece, n in counts.items()}
        total = sum(counts.values())
        log_p = {piece: math.log(n / total) for piece, n in counts.items()}
    return dict(log_p)


def missed(words: Words, log_p: Mapping[str, float]) -> dict[str, float]:
    """By how much the log likelihood falls if a piece is taken out and the next best cut of its text stands there."""
    longest = max(map(len, log_p))
    used: Counter[str] = Counter()
    for word, times in words.items():
        for piece in likeliest_cut(word, log_p, longest)[0]:
            used[piece] += times
    falls = {}
    for piece in log_p:
        if len(piece) > 1:
            others = {part: p for part, p in log_p.items() if part in piece and part != piece}
            falls[piece] = used[piece] * (log_p[piece] - likeliest_cut(piece, others, longest)[1])
    return falls


class Unigram:
    """Pieces and their log probabilities: text to pieces and tokens, and back."""

    def __init__(self, log_p: Mapping[str, float]) -> None:
        self.log_p = dict(log_p)
        self.tokens = list(self.log_p)
        self.ids = {piece: token for token, piece in enumerate(self.tokens)}
        self.longest = max(map(len, self.tokens))

    @classmethod
    def train(
        cls, text: str, vocab_size: int, *, longest: int = 8, seeds: int = 4000, keep: float = 0.75
    ) -> Unigram:
        """Fit, take out what is missed least, and so on, down to ``vocab_size`` pieces, the likeliest first.

        Args:
            longest: the most characters of a piece.
            seeds: how many substrings to begin with: those with the largest count times length.
            keep: the share of the pieces that stay in each round.

        Raises:
            ValueError: the vocabulary cannot even hold the single characters.
        """
        words = Counter(split_words(text))
        found: Counter[str] = Counter()
        for word, times in words.items():
            for start in range(len(word)):
                for end in range(start + 1, min(start + longest, len(word)) + 1):
                    found[word[start:end]] += times
        characters = sorted(piece for piece in found if len(piece) == 1)
        if vocab_size < len(characters):
            raise ValueError(
                f"vocab_size is {vocab_size}; the single characters alone are {len(characters)} pieces, "
                "so choose at least as many."
            )
        several = sorted(
            (p for p, n in found.items() if len(p) > 1 and n > 1), key=lambda p: (-found[p] * len(p), p)
        )
        counts = {piece: found[piece] for piece in [*characters, *several[:seeds]]}
        log_p = fit(words, {piece: math.log(n / sum(counts.values())) for piece, n in counts.items()})
        while len(log_p) > vocab_size:
            falls = missed(words, log_p)
            stay = max(vocab_size, int(keep * len(log_p))) - len(characters)
            kept = {*characters, *sorted(falls, key=lambda piece: (-falls[piece], piece))[:stay]}
            log_p = fit(words, {piece: p for piece, p in log_p.items() if piece in kept})
        return cls({piece: log_p[piece] for piece in sorted(log_p, key=lambda p: (-log_p[p], p))})

    def cut(self, word: str) -> list[str]:
        """The likeliest pieces of a word."""
        unseen = min(self.log_p.values()) - NEVER_SEEN
        log_p = {**dict.fromkeys(word, unseen), **self.log_p} if set(word) - self.ids.keys() else self.log_p
        return likeliest_cut(word, log_p, self.longest)[0]

    def pieces(self, text: str) -> list[str]:
        return [piece for word in split_words(text) for piece in self.cut(word)]

    def encode(self, text: str) -> list[int]:
        """Tokens; -1 for a character that the training text did not have."""
        return [self.ids.get(piece, -1) for piece in self.pieces(text)]

    def decode(self, tokens: Iterable[int]) -> str:
        return (
            "".join(self.tokens[token] if token >= 0 else "\ufffd" for token in tokens)
            .replace(SPACE, " ")
            .strip()
        )
