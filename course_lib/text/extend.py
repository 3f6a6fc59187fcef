"""New words for a vocabulary: their tokens, and the rows that a trained model needs for them.

A byte-level model can write every character, but a Chinese one takes three tokens. Words that are added to its
vocabulary take one each (Chinese LLaMA, arXiv:2304.08177). The embedding and the output matrix each get a row a word,
and no training has seen these rows: they may begin as the mean of the rows of the pieces that made the word before.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from course_lib.models.llama import Llama

BYTES = 256
Start = Callable[[Tensor], Tensor]
MATRICES = ("model.embed_tokens.weight", "lm_head.weight")


class BytesAndWords:
    """Bytes are the tokens 0 to 255, and each added word is one token from 256 on. The longest word is taken."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        self.words = _words(words)
        self.ids = {word: BYTES + i for i, word in enumerate(self.words)}
        longest_first = sorted(self.words, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if self.words else None

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = []
        at = 0
        for found in self._pattern.finditer(text) if self._pattern else ():
            tokens += [*text[at : found.start()].encode(), self.ids[found[0]]]
            at = found.end()
        return [*tokens, *text[at:].encode()]

    def decode(self, tokens: Sequence[int]) -> str:
        parts = (bytes([t]) if t < BYTES else self.words[t - BYTES].encode() for t in tokens)
        return b"".join(parts).decode(errors="replace")


def with_words(pieces: Sequence[str], words: Sequence[str]) -> list[list[str]]:
    """A published tokenizer's pieces when ``words`` are added: those of one word in a list, every other piece alone.

    At each place the longest word is taken; one that begins or ends inside a piece is not found. The ``▁`` before a
    text goes when a word follows it, as in transformers with ``legacy=False``.

    Raises:
        ValueError: ``words`` is no list of texts, or one of them is empty.
    """
    known = {word.encode() for word in _words(words)}
    spelled = [_spelled(piece) for piece in pieces]
    found, at = [], 0
    while at < len(pieces):
        ends = (end for end in range(len(pieces), at, -1) if b"".join(spelled[at:end]) in known)
        end = next(ends, 0)
        if end and found == [["▁"]]:
            found = []
        found.append(list(pieces[at : end or at + 1]))
        at += len(found[-1])
    return found


def spell(pieces: Sequence[str]) -> str:
    """The text of some pieces, if they hold whole characters."""
    return b"".join(map(_spelled, pieces)).decode()


def _spelled(piece: str) -> bytes:
    """The bytes of a piece: ``<0xE5>`` and ``<E5><92>`` are bytes already."""
    parts = re.findall(r"<(?:0x)?([0-9A-F]{2})>|(.)", piece, re.DOTALL)
    return b"".join(bytes.fromhex(byte) or character.encode() for byte, character in parts)


def _words(words: Sequence[str]) -> list[str]:
    if isinstance(words, str) or not isinstance(words, Sequence):
        raise ValueError(f"the added words are {words!r}; give a list of texts, such as ['咖啡'].")
    if wrong := [word for word in words if not isinstance(word, str) or not word]:
        raise ValueError(f"{wrong[0]!r} cannot be added; a word is a text of one character or more.")
    return list(words)


def mean(rows: Tensor) -> Tensor:
    return rows.mean(0)


def with_new_rows(
    model: Llama, tokenizer: BytesAndWords, words: Sequence[str], read: Start = mean, write: Start = mean
) -> Llama:
    """A copy of a model with a row for each word in its embedding and in its output matrix.

    Args:
        tokenizer: the model's, before the words are added.
        read: makes a word's row in the embedding from those of its old pieces there, (pieces, hidden) -> (hidden,).
        write: the same in the output matrix.

    Raises:
        ValueError: the tokenizer is not the model's, or ``read`` or ``write`` makes no row.
    """
    size = BYTES + len(tokenizer.words)
    if model.config.vocab_size != size:
        raise ValueError(f"the model has {model.config.vocab_size} tokens, and its tokenizer {size}.")
    state = model.state_dict()
    for name, start in zip(MATRICES, (read, write), strict=True):
        old = state[name]  # (tokens, hidden)
        new = [start(old[tokenizer.encode(word)]) for word in words]
        if wrong := [row for row in new if not isinstance(row, Tensor) or row.shape != old[0].shape]:
            shape = tuple(wrong[0].shape) if isinstance(wrong[0], Tensor) else repr(wrong[0])
            raise ValueError(f"a new row has {old.shape[1]} numbers; yours is {shape}.")
        state[name] = torch.cat((old, *(row[None] for row in new)))
    grown = Llama(replace(model.config, vocab_size=size + len(words)))
    grown.load_state_dict(state)
    return grown


@cache
def chinese_text() -> str:
    """200,000 characters: the words of OpenCC's tables in a random order, with commas between them."""
    spec = find_spec("opencc")
    if spec is None or spec.origin is None:
        raise ValueError(
            "OpenCC's tables are not installed; `pip install opencc-python-reimplemented` brings them."
        )
    table = Path(spec.origin).parent / "dictionary" / "STPhrases.txt"
    words = [line.split("\t")[0] for line in table.read_text(encoding="utf-8").splitlines() if line]
    random.Random(0).shuffle(words)
    return "，".join(words)


@torch.no_grad()
def loss_per_character(model: Llama, tokenizer: BytesAndWords, text: str, length: int = 64) -> float:
    """In nats. A loss per token cannot be compared when one model's tokens say more than the other's."""
    tokens = torch.tensor(tokenizer.encode(text))
    used = (len(tokens) - 1) // length * length
    x, y = tokens[:used].view(-1, length), tokens[1 : used + 1].view(-1, length)
    losses: Tensor = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
    return losses.item() / (len(text) * used / len(tokens))
