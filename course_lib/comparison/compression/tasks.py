"""What is learned: handwritten digits, or the next byte of Python's documentation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from course_lib.data.digits import load_digits
from course_lib.data.docs import corpus_tokens, language_windows
from course_lib.data.sharding import shuffled
from course_lib.models.llama import Llama, LlamaConfig

SEQUENCE = 64  # bytes of a window
HELD_OUT = 256  # samples of the validation part, and windows of the test part


@dataclass(frozen=True)
class Task:
    """Samples in three parts, inputs and targets each; no sample is in two parts.

    Attributes:
        train, validation, test: on ``validation`` learning rates are chosen, on ``test`` nothing is.
        digest: of the data; the documentation differs a little between versions of Python.
    """

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @property
    def digest(self) -> str:
        found = hashlib.sha256()
        for tensor in (*self.train, *self.validation, *self.test):
            found.update(tensor.contiguous().numpy().tobytes())
        return found.hexdigest()[:12]


@cache
def digits() -> Task:
    images, labels = load_digits()
    cut = len(labels) - HELD_OUT
    return Task((images[:cut], labels[:cut]), (images[cut:], labels[cut:]), load_digits("test"))


@cache
def docs() -> Task:
    """Windows of ``SEQUENCE`` bytes in uint8, because they travel to the ranks."""
    tokens, targets = language_windows(corpus_tokens("bytes").to(torch.uint8), SEQUENCE)
    order = shuffled(len(tokens))
    parts = order[: -2 * HELD_OUT], order[-2 * HELD_OUT : -HELD_OUT], order[-HELD_OUT:]
    return Task(*((tokens[part], targets[part]) for part in parts))


def digits_model() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def docs_model() -> nn.Module:
    """A LLaMA of one narrow layer, over bytes."""
    return Llama(
        LlamaConfig.tiny(
            hidden_size=64,
            intermediate_size=168,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=SEQUENCE,
        )
    )


TASKS: dict[str, Callable[[], Task]] = {"docs": docs, "digits": digits}
MODELS: dict[str, Callable[[], nn.Module]] = {"docs": docs_model, "digits": digits_model}
