"""Exercise 02.1: one merge step of BPE and its encoder, what likely mistakes give, and merges that count look-ups."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

Word = tuple[int, ...]
Pair = tuple[int, int]


def joined(word: Word, pair: Pair, new: int, *, backwards: bool = False, once: bool = False) -> Word:
    """The word with the pair replaced by the id ``new``, from left to right."""
    if backwards:
        return joined(word[::-1], pair[::-1], new)[::-1]
    out: list[int] = []
    i, done = 0, False
    while i < len(word):
        if word[i : i + 2] == pair and not (once and done):
            out.append(new)
            i, done = i + 2, True
        else:
            out.append(word[i])
            i += 1
    return tuple(out)


def merged_once(
    words: Mapping[Word, int], new: int, mistake: str = ""
) -> tuple[Pair | None, dict[Word, int]]:
    """The pair that stands most often in the text (ties: the smallest), and the words after it is merged."""
    counts: Counter[Pair] = Counter()
    for word, count in words.items():
        i = 0
        while i + 1 < len(word):
            counts[word[i : i + 2]] += 1 if mistake == "words once" else count
            i += 2 if mistake == "apart" and word[i : i + 2] == word[i + 1 : i + 3] else 1
    if mistake == "across":
        text = [i for word, count in words.items() for i in word * count]
        counts = Counter(itertools.pairwise(text))
    if not counts:
        return None, dict(words)
    if mistake == "first":
        pair = max(counts, key=counts.__getitem__)
    elif mistake == "largest":
        pair = max(counts, key=lambda p: (counts[p], p))
    else:
        pair = min(counts, key=lambda p: (-counts[p], p))
    how = {"backwards": mistake == "backwards", "once": mistake == "one place"}
    return pair, {joined(word, pair, new, **how): count for word, count in words.items()}


ACROSS = "when the last id of a word and the first of the next are counted as a pair"
MERGING: dict[str, Callable[..., Any]] = {
    "when each word counts once, however often it stands in the text": partial(
        merged_once, mistake="words once"
    ),
    ACROSS: partial(merged_once, mistake="across"),
    "when of several pairs with the same count the one that was seen first is taken": (
        partial(merged_once, mistake="first")
    ),
    "when of several pairs with the same count the largest is taken": partial(merged_once, mistake="largest"),
    "when in three equal ids only one pair is counted": partial(merged_once, mistake="apart"),
    "when pairs are merged from the right end of a word": partial(merged_once, mistake="backwards"),
    "when only the first place of a pair in each word is merged": partial(merged_once, mistake="one place"),
}


def pair_of(program: Callable[..., Any]) -> Callable[..., Any]:
    return lambda words, new: program(words, new)[0]


def words_of(program: Callable[..., Any]) -> Callable[..., Any]:
    return lambda words, new: program(words, new)[1]


def encoded(ids: list[int], merges: Mapping[Pair, int], mistake: str = "") -> list[int]:
    """Again and again the pair that was learned first (its new id is the smallest) is merged."""
    word = tuple(ids)
    if mistake == "longest":
        return _longest(word, merges)
    if mistake == "leftmost":
        while places := [i for i in range(len(word) - 1) if word[i : i + 2] in merges]:
            at = places[0]
            word = (*word[:at], merges[word[at : at + 2]], *word[at + 2 :])
        return list(word)
    while known := [pair for pair in itertools.pairwise(word) if pair in merges]:
        pair = (max if mistake == "last" else min)(known, key=merges.__getitem__)
        word = joined(word, pair, merges[pair], backwards=mistake == "backwards")
        if mistake == "one":
            break
    return list(word)


def _longest(word: Word, merges: Mapping[Pair, int]) -> list[int]:
    """From the left, the longest piece that is a token: how WordPiece encodes, not BPE."""
    pieces: dict[Word, int] = {}
    spelled: dict[int, Word] = {}
    for (a, b), new in merges.items():
        spelled[new] = (*spelled.get(a, (a,)), *spelled.get(b, (b,)))
        pieces.setdefault(spelled[new], new)
    out, i = [], 0
    while i < len(word):
        for end in range(len(word), i, -1):
            piece = word[i:end]
            if piece in pieces or len(piece) == 1:
                out.append(pieces.get(piece, piece[0]))
                i = end
                break
    return out


ENCODING: dict[str, Callable[..., list[int]]] = {
    "when the leftmost pair that has a merge is taken, and not the one that was learned first": (
        partial(encoded, mistake="leftmost")
    ),
    "when the longest token is taken from the left, as WordPiece does": partial(encoded, mistake="longest"),
    "when the pair that was learned last is merged first": partial(encoded, mistake="last"),
    "when only one pair is merged, and what it makes possible is not": partial(encoded, mistake="one"),
    "when pairs are merged from the right end": partial(encoded, mistake="backwards"),
}


def drawn(seed: int, letters: int, count: int, longest: int) -> dict[Word, int]:
    """Words of random ids below ``letters`` and how often each stands in the text; few letters give many ties."""
    dice = random.Random(seed)
    found: dict[Word, int] = {}
    for _ in range(count):
        found[tuple(dice.choices(range(letters), k=dice.randint(1, longest)))] = dice.randint(1, 4)
    return found


def learned(words: Mapping[Word, int], letters: int, most: int) -> dict[Pair, int]:
    """Up to ``most`` merges of these words; the first makes the id ``letters``."""
    merges: dict[Pair, int] = {}
    for new in range(letters, letters + most):
        pair, words = merged_once(words, new)
        if pair is None:
            break
        merges[pair] = new
    return merges


class CountedMerges(dict):
    """Merges that count how often they are looked into; going through all of them counts each."""

    looked = 0

    def _look(self, times: int = 1) -> None:
        self.looked += times

    def __getitem__(self, key: Any) -> Any:
        self._look()
        return super().__getitem__(key)

    def __contains__(self, key: Any) -> bool:
        self._look()
        return super().__contains__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self._look()
        return super().get(key, default)

    def __iter__(self) -> Iterator[Any]:
        for key in super().__iter__():
            self._look()
            yield key

    def keys(self) -> Any:
        self._look(len(self))
        return super().keys()

    def values(self) -> Any:
        self._look(len(self))
        return super().values()

    def items(self) -> Any:
        self._look(len(self))
        return super().items()

    def copy(self) -> dict:
        self._look(len(self))
        return super().copy()
