"""What is to be trained, on what, and how: the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course_lib.data.docs import corpus_tokens, language_windows, package_task
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from simulator.inputs.plan import Plan

BYTES, WORD_PIECES, PACKAGES = 256, 30522, 8  # words of the two tokenizers, and classes of the task


@dataclass(frozen=True)
class Job:
    """One run of ``course_lib.train``.

    Args:
        model: gpt and llama predict the next byte of Python's documentation; bert says from which package of the
            standard library a docstring comes.
        layers, hidden, heads, sequence: of the model; ``sequence`` tokens are a sample.
        save_every: steps between two checkpoints in ``checkpoint``; the last step is saved, too.
        peak_flops: of all devices together, for MFU; None: not known.
    """

    model: str
    plan: Plan
    layers: int = 4
    hidden: int = 128
    heads: int = 4
    sequence: int = 64
    steps: int = 20
    lr: float = 1e-3
    clip: float = 1.0
    seed: int = 0
    checkpoint: Path | None = None
    save_every: int | None = None
    resume: bool = False
    peak_flops: float | None = None

    def make_model(self) -> nn.Module:
        """From the seed; under any plan the same."""
        torch.manual_seed(self.seed)
        h = self.hidden
        match self.model:
            case "gpt":
                sizes = {"num_layers": self.layers, "num_heads": self.heads, "hidden_size": h}
                return GPT(GPTConfig.tiny(vocab_size=BYTES, max_length=self.sequence, **sizes))
            case "llama":
                sizes = {
                    "num_hidden_layers": self.layers,
                    "num_attention_heads": self.heads,
                    "hidden_size": h,
                }
                sizes |= {
                    "num_key_value_heads": self.heads,
                    "intermediate_size": 8 * h // 3 // self.heads * self.heads,
                }
                return Llama(
                    LlamaConfig.tiny(vocab_size=BYTES, max_position_embeddings=self.sequence, **sizes)
                )
        sizes = {"num_hidden_layers": self.layers, "num_attention_heads": self.heads, "hidden_size": h}
        sizes |= {"intermediate_size": 4 * h, "max_position_embeddings": self.sequence}
        config = BertConfig.tiny(vocab_size=WORD_PIECES, **sizes)
        return BertClassifier(Bert(config, pooler=True), PACKAGES)

    def load_data(self) -> Samples:
        """Inputs and targets of all samples, with one length, and how many tokens each sample has."""
        if self.model == "bert":
            task = package_task(classes=PACKAGES, length=self.sequence)
            return Samples((task.tokens, task.mask.long(), task.labels), task.mask.sum(1))
        corpus = corpus_tokens("bytes").to(torch.uint8)  # it travels to the ranks
        tokens, targets = language_windows(corpus, self.sequence)
        return Samples((tokens, targets), torch.full((len(tokens),), self.sequence))


class Samples(NamedTuple):
    tensors: tuple[Tensor, ...]
    tokens: Tensor  # (samples,)
