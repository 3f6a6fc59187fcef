"""Inputs and targets of each task, all of one length."""

from __future__ import annotations

from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from course_lib.data.denoising import denoising_samples, masked_samples
from course_lib.data.docs import corpus, corpus_tokens, language_windows, package_task
from course_lib.data.finetuning_tasks import Part, word_order

BYTES = 256  # tokens of a language model
CLASSES = {"package": 8, "word-order": 2}  # of the tasks that ask which of several


class Samples(NamedTuple):
    """``tensors`` of all samples, and how many ``tokens`` each has; ``test``: samples that are never trained on."""

    tensors: tuple[Tensor, ...]
    tokens: Tensor  # (samples,)
    test: tuple[Tensor, ...] | None = None


def load_samples(task: str, sequence: int, seed: int, tokenizer: Tokenizer | None = None) -> Samples:
    """``tokenizer``: of a language model; None: its tokens are bytes."""
    match task:
        case "package":
            train, test = (package_task(split, CLASSES[task], sequence) for split in ("train", "test"))
            return _classified(Part(*train[:3]), Part(*test[:3]), sequence)
        case "word-order":
            sentences = word_order(seed)
            return _classified(sentences.train, sentences.test, sequence)
        case "words":
            tokens, targets = masked_samples(sequence, seed)
            return Samples((tokens.int(), targets.int()), _all(sequence, tokens))
        case "denoising":
            tokens, decoder_tokens, mask, targets = denoising_samples(sequence, seed)
            sent = (tokens.int(), decoder_tokens.int(), mask.byte(), targets.int())
            return Samples(sent, mask.sum(1) + sequence)
    if tokenizer is None:
        text = corpus_tokens("bytes").to(torch.uint8)  # it travels to the ranks
    else:
        paragraphs = tokenizer.encode_batch(corpus().split("\n\n"), add_special_tokens=False)
        text = torch.tensor([i for p in paragraphs for i in p.ids], dtype=torch.int32)
    tokens, targets = language_windows(text, sequence)
    return Samples((tokens, targets), _all(sequence, tokens))


def _classified(train: Part, test: Part, sequence: int) -> Samples:
    parts = [
        (part.tokens[:, :sequence], part.mask[:, :sequence].long(), part.labels) for part in (train, test)
    ]
    return Samples(parts[0], parts[0][1].sum(1), parts[1])


def _all(sequence: int, tokens: Tensor) -> Tensor:
    return torch.full((len(tokens),), sequence)
