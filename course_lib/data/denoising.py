"""Noise for a model to undo: BART's text infilling and sentence permutation, and BERT's masked words.

BART (arXiv:1910.13461, sections 2.2 and 4) takes spans out of a text and puts ONE mask token in the place of each, so
the model must also say how many tokens are missing. The lengths of the spans are drawn from a Poisson distribution
with mean 3. A span of length 0 puts in a mask where nothing is missing. The large BART masks 30 % of a text's tokens,
and shuffles its sentences.

BERT (arXiv:1810.04805, section 3.1) keeps the length: it asks for 15 % of the tokens, each in its own place.

All randomness comes from a ``numpy.random.Generator``, so a seed gives the same noise everywhere.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_lib.data.docs import corpus_tokens, language_windows
from course_lib.models.bart import shift_right

IGNORED = -100  # a target that does not count, as in nn.CrossEntropyLoss


class WordPieces(NamedTuple):
    """The tokens of MiniLM's tokenizer that noise needs."""

    padding: int = 0
    start: int = 101  # [CLS]
    end: int = 102  # [SEP]
    mask: int = 103  # [MASK]
    full_stop: int = 1012
    words: int = 30522


WORD_PIECES = WordPieces()


class Infilled(NamedTuple):
    source: Tensor  # (m,): the text with a mask token for each span
    removed: list[Tensor]  # the tokens of each span, in the order of their masks; some are empty


def span_lengths(n: int, ratio: float, mean: float, rng: np.random.Generator) -> list[int]:
    """Poisson lengths, drawn until they add up to ``round(ratio · n)`` tokens; the last one is cut to fit."""
    left, lengths = round(ratio * n), []
    while left > 0:
        lengths.append(min(int(rng.poisson(mean)), left))
        left -= lengths[-1]
    return lengths


def text_infilling(
    tokens: Tensor,
    mask_token: int,
    rng: np.random.Generator,
    *,
    ratio: float = 0.3,
    mean: float = 3.0,
) -> Infilled:
    """Take spans out of ``tokens`` ``(n,)``, and put one mask token in the place of each.

    The spans do not overlap, and each way to place them among the tokens that stay is equally likely.

    Args:
        ratio: the part of the tokens that is taken out.
        mean: of the Poisson distribution of the spans' lengths.

    Raises:
        ValueError: a ratio outside 0 to 1, a mean that is not positive, a text that holds the mask token already.
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"ratio is {ratio}; it is the part of the tokens that is masked, from 0 to 1.")
    if not mean > 0:
        raise ValueError(f"mean is {mean}; spans need a mean length above 0.")
    if (tokens == mask_token).any():
        raise ValueError(
            f"the text holds the mask token {mask_token}; it must have none before it is masked."
        )
    lengths = np.array(span_lengths(len(tokens), ratio, mean, rng), dtype=int)
    sizes = np.ones(
        len(tokens) - lengths.sum() + len(lengths), dtype=int
    )  # of tokens that stay, and of spans
    spans = np.sort(rng.choice(len(sizes), len(lengths), replace=False))
    sizes[spans] = lengths
    starts = sizes.cumsum() - sizes
    source = np.append(tokens.numpy(), mask_token)[starts]
    source[spans] = mask_token
    removed = [tokens[start : start + size] for start, size in zip(starts[spans], lengths, strict=True)]
    return Infilled(torch.from_numpy(source), removed)


def permute_sentences(tokens: Tensor, full_stop: int, rng: np.random.Generator) -> Tensor:
    """The sentences of ``tokens`` ``(n,)`` in another order. A sentence ends with a full stop, or with the text."""
    ends = (tokens == full_stop).nonzero().flatten() + 1
    sentences = [part for part in tokens.tensor_split(ends) if len(part)]
    return torch.cat([sentences[i] for i in rng.permutation(len(sentences))] or [tokens])


def mask_words(
    tokens: Tensor,
    mask_token: int,
    words: int,
    rng: np.random.Generator,
    *,
    ratio: float = 0.15,
    may_be_asked: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """BERT's noise: ``(inputs, targets)``, both shaped as ``tokens``; a target that is not asked for is -100.

    Each token is asked for with probability ``ratio``. Of those that are, 80 % become the mask token, 10 % a word
    that is drawn from all ``words``, and 10 % stay: the model cannot tell which tokens it will be asked for.

    Args:
        may_be_asked: boolean, shaped as ``tokens``; None: all.
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"ratio is {ratio}; it is the part of the tokens that is asked for, from 0 to 1.")

    def drawn(below: float) -> Tensor:
        return torch.from_numpy(rng.random(tuple(tokens.shape)) < below)

    asked = drawn(ratio)
    if may_be_asked is not None:
        asked &= may_be_asked
    targets = tokens.masked_fill(~asked, IGNORED)
    masked = asked & drawn(0.8)
    replaced = asked & ~masked & drawn(0.5)
    random_words = torch.from_numpy(rng.integers(words, size=tuple(tokens.shape)))
    inputs = tokens.masked_fill(masked, mask_token)
    return torch.where(replaced, random_words, inputs), targets


# ---- samples of the documentation -------------------------------------------------------------------------


def documentation_windows(length: int) -> Tensor:
    """Pieces of Python's documentation with [CLS] before and [SEP] behind: ``(n, length)`` word pieces."""
    if length < 4:
        raise ValueError(f"length is {length}; [CLS], two tokens and [SEP] need at least 4.")
    text, _ = language_windows(corpus_tokens("wordpiece"), length - 2)
    edge = text.new_ones(len(text), 1)
    return torch.cat((edge * WORD_PIECES.start, text, edge * WORD_PIECES.end), dim=1)


class Denoising(NamedTuple):
    """What ``Bart`` takes, and what its decoder shall write."""

    tokens: Tensor  # (n, length): noisy, padded at the end
    decoder_tokens: Tensor  # (n, length): the targets, one place to the right
    mask: Tensor  # (n, length) bool: true where a token of the source is
    targets: Tensor  # (n, length): the text as it was


@cache
def denoising_samples(length: int, seed: int = 0, *, permute: bool = True, ratio: float = 0.3) -> Denoising:
    """Each window of the documentation with BART's noise in it, drawn once.

    [CLS] and [SEP] stay. A draw that would make a source longer than its text is drawn again. The tensors are shared
    by all callers: do not write into them.
    """
    targets = documentation_windows(length)
    tokens = torch.full_like(targets, WORD_PIECES.padding)
    rng = np.random.default_rng(seed)
    for row, text in zip(tokens, targets[:, 1:-1], strict=True):
        if permute:
            text = permute_sentences(text, WORD_PIECES.full_stop, rng)
        source = text_infilling(text, WORD_PIECES.mask, rng, ratio=ratio).source
        while len(source) > len(text):
            source = text_infilling(text, WORD_PIECES.mask, rng, ratio=ratio).source
        row[0], row[len(source) + 1] = WORD_PIECES.start, WORD_PIECES.end
        row[1 : len(source) + 1] = source
    decoder_tokens = shift_right(targets, WORD_PIECES.end, WORD_PIECES.padding)
    return Denoising(tokens, decoder_tokens, tokens != WORD_PIECES.padding, targets)


class MaskedWords(NamedTuple):
    """What ``BertMaskedWords`` takes, and the words that it is asked for."""

    tokens: Tensor  # (n, length)
    targets: Tensor  # (n, length), -100 where nothing is asked


@cache
def masked_samples(length: int, seed: int = 0, *, ratio: float = 0.15) -> MaskedWords:
    """Each window of the documentation with BERT's noise in it, drawn once. [CLS] and [SEP] are never asked for."""
    windows = documentation_windows(length)
    inner = torch.zeros_like(windows, dtype=torch.bool)
    inner[:, 1:-1] = True
    rng = np.random.default_rng(seed)
    return MaskedWords(
        *mask_words(windows, WORD_PIECES.mask, WORD_PIECES.words, rng, ratio=ratio, may_be_asked=inner)
    )
