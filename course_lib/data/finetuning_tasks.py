"""Two tasks on which ways of fine-tuning are compared, each in three parts that share no text.

- ``docstring_package``: from which package of the standard library does a docstring come? Frozen features of MiniLM
  nearly suffice, so no method of fine-tuning can be much better than another.
- ``word_order``: is this sentence in order, or were two adjacent words swapped? Frozen features say little about it.

Learning rates are chosen on ``validation``; ``test`` is for what was chosen. The text is that of this Python's own
documentation, so numbers of samples differ a little between Python versions.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.data.docs import docstrings, package_task
from course_lib.data.sharding import shuffled
from course_lib.models.pretrained import load_tokenizer

LENGTH = 64  # tokens, [CLS] and [SEP] among them
WORDS = range(6, 25)  # of a sentence
IN_ORDER, SWAPPED = 0, 1


class Part(NamedTuple):
    """Samples, in the order that ``sharding.batches`` and ``one_device.loop.accuracy`` take."""

    tokens: Tensor  # (n, length) int64, padded with 0
    mask: Tensor  # (n, length) bool, true where a token is
    labels: Tensor  # (n,) int64, an index into the task's classes

    def first(self, n: int | None) -> Part:
        """The first n samples; None: all."""
        return Part(*(tensor[:n] for tensor in self))


class Task(NamedTuple):
    train: Part
    validation: Part
    test: Part
    classes: tuple[str, ...]

    def first(self, n: int | None) -> Task:
        """At most n samples of each part, for quick runs."""
        return Task(self.train.first(n), self.validation.first(n), self.test.first(n), self.classes)


def docstring_package(seed: int = 0) -> Task:
    """``docs.package_task``, whose test part is always the same; ``seed`` draws the validation part, a fifth."""
    train, test = package_task("train"), package_task("test")
    order = shuffled(len(train.labels), seed)
    fifth = len(order) // 5
    validation, rest = (Part(*(t[i] for t in train[:3])) for i in (order[:fifth], order[fifth:]))
    return Task(rest, validation, Part(*test[:3]), train.packages)


def word_order(seed: int = 0, validation: int = 1000, test: int = 1500) -> Task:
    """Half of the sentences of each part have two adjacent words swapped, once; no sentence is used twice.

    Args:
        seed: decides which sentence belongs to which part, which are swapped, and where.
        validation, test: the sizes of these parts; the rest, about 5,000 sentences, is for training.

    Raises:
        ValueError: a part is empty.
    """
    texts, pieces = sentences(), sentence_pieces()
    if min(validation, test) < 1 or validation + test >= len(texts):
        raise ValueError(
            f"validation is {validation} and test is {test}; each needs at least 1, together they may have "
            f"{len(texts) - 1} of the {len(texts)} sentences."
        )
    order, rng = shuffled(len(texts), seed).tolist(), random.Random(seed)
    chosen = order[:test], order[test : test + validation], order[test + validation :]
    parts = []
    for indices in chosen:
        swapped = set(rng.sample(indices, len(indices) // 2))
        rows = [(swap_two(pieces[i], rng) if i in swapped else pieces[i]) for i in indices]
        labels = [SWAPPED if i in swapped else IN_ORDER for i in indices]
        parts.append(_padded(rows, labels))
    test_part, validation_part, train_part = parts
    return Task(train_part, validation_part, test_part, ("in order", "swapped"))


TASKS = {"word-order": word_order, "docstring-package": docstring_package}


@cache
def sentences() -> tuple[str, ...]:
    """Sentences of the standard library's docstrings with 6 to 24 words, each once, without the mark at their end."""
    found: dict[str, str] = {}
    for entry in docstrings():
        for paragraph in re.split(r"\n\s*\n", entry.text):
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(paragraph.split())):
                # Prose begins with a capital letter and ends with a mark; lists, tables and sessions do not.
                if re.fullmatch(r"[A-Z].*[a-z)\"'][.!?]", sentence) and not re.search(">>>|--", sentence):
                    found.setdefault(sentence.lower(), sentence[:-1])
    return tuple(s for s in found.values() if len(s.split()) in WORDS and len(set(s.lower().split())) > 1)


@cache
def sentence_pieces() -> tuple[tuple[tuple[int, ...], ...], ...]:
    """For each sentence its words, and for each word its WordPiece ids in MiniLM's vocabulary."""
    words = sorted({word for sentence in sentences() for word in sentence.split()})
    encoded = load_tokenizer().encode_batch(words, add_special_tokens=False)
    ids = {word: tuple(pieces.ids) for word, pieces in zip(words, encoded, strict=True)}
    return tuple(tuple(ids[word] for word in sentence.split()) for sentence in sentences())


def swap_two(words: Iterable[tuple[int, ...]], rng: random.Random) -> tuple[tuple[int, ...], ...]:
    """The words with two neighbours exchanged, which differ."""
    words = list(words)
    i = rng.choice([i for i in range(len(words) - 1) if words[i] != words[i + 1]])
    words[i], words[i + 1] = words[i + 1], words[i]
    return tuple(words)


def _padded(rows: Iterable[tuple[tuple[int, ...], ...]], labels: list[int]) -> Part:
    """``[CLS] words [SEP]``, padded to ``LENGTH``; a longer sentence is cut there."""
    tokenizer = load_tokenizer()
    cls, sep = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    tokens = torch.zeros(len(labels), LENGTH, dtype=torch.int64)
    for i, words in enumerate(rows):
        ids = [cls, *[piece for word in words for piece in word][: LENGTH - 2], sep]
        tokens[i, : len(ids)] = torch.tensor(ids)
    return Part(tokens, tokens != 0, torch.tensor(labels))
