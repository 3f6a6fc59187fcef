"""What is to be trained, on what, and how: the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course_lib.data.denoising import WORD_PIECES, denoising_samples, masked_samples
from course_lib.data.docs import corpus_tokens, language_windows, package_task
from course_lib.finetuning.methods import virtual_tokens
from course_lib.models.bart import Bart, BartConfig
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.masked_words import BertMaskedWords
from course_lib.train.tuning import tune
from simulator.inputs.plan import Plan

BYTES, PACKAGES = 256, 8  # tokens of a language model, and classes of the task


@dataclass(frozen=True)
class Job:
    """One run of ``course_lib.train``.

    Args:
        model, task: gpt and llama predict the next byte of Python's documentation (``language``). bert says from which
            package of the standard library a docstring comes (``package``), or which words were masked (``words``).
            bart writes a text without the noise that was put in (``denoising``).
        layers, hidden, heads, sequence: of the model; ``sequence`` tokens are a sample. BART has ``layers`` in the
            encoder and as many in the decoder.
        tuning: the method of fine-tuning, and its settings.
        placement: where the blocks of each layer are, and how many heads, columns and tokens each rank has; None:
            as the plan says.
        compression: how data-parallel ranks send gradients, and its settings; None: as they are.
        save_every: steps between two checkpoints in ``checkpoint``; the last step is saved, too.
        peak_flops: of all devices together, for MFU; None: not known.
    """

    model: str
    plan: Plan
    task: str = "language"
    layers: int = 4
    hidden: int = 128
    heads: int = 4
    sequence: int = 64
    tuning: Mapping[str, Any] = field(default_factory=lambda: {"method": "full"})
    placement: Mapping[str, Any] | None = None
    compression: Mapping[str, Any] | None = None
    steps: int = 20
    lr: float = 1e-3
    clip: float = 1.0
    seed: int = 0
    checkpoint: Path | None = None
    save_every: int | None = None
    resume: bool = False
    peak_flops: float | None = None

    @property
    def positions(self) -> int:
        """That the model has: for the tokens of a sample, and for virtual tokens in front of them."""
        return self.sequence + max(0, virtual_tokens(self.tuning))

    def make_model(self) -> nn.Module:
        """From the seed; under any plan the same. It is as large as the simulator takes it: nothing is added yet."""
        torch.manual_seed(self.seed)
        return getattr(self, f"_{self.model}")()

    def tuned(self, model: nn.Module) -> nn.Module:
        """``model`` with what the method of fine-tuning adds to it, from the seed."""
        torch.manual_seed(self.seed + 1)
        tune(model, **self.tuning)
        return model

    def _gpt(self) -> GPT:
        sizes = {"num_layers": self.layers, "num_heads": self.heads, "hidden_size": self.hidden}
        return GPT(GPTConfig.tiny(vocab_size=BYTES, max_length=self.positions, **sizes))

    def _llama(self) -> Llama:
        inner = 8 * self.hidden // 3 // self.heads * self.heads
        sizes = self._sizes() | {"num_key_value_heads": self.heads, "intermediate_size": inner}
        return Llama(LlamaConfig.tiny(vocab_size=BYTES, **sizes))

    def _bert(self) -> BertClassifier | BertMaskedWords:
        config = BertConfig.tiny(
            vocab_size=WORD_PIECES.words, intermediate_size=4 * self.hidden, **self._sizes()
        )
        if self.task == "words":
            return BertMaskedWords(Bert(config))
        return BertClassifier(Bert(config, pooler=True), PACKAGES)

    def _bart(self) -> Bart:
        sides = {
            f"{side}_{key}": value
            for side in ("encoder", "decoder")
            for key, value in {
                "layers": self.layers,
                "attention_heads": self.heads,
                "ffn_dim": 4 * self.hidden,
            }.items()
        }
        tokens = {
            "pad_token_id": WORD_PIECES.padding,
            "bos_token_id": WORD_PIECES.start,
            "eos_token_id": WORD_PIECES.end,
            "decoder_start_token_id": WORD_PIECES.end,
        }
        sizes = {"d_model": self.hidden, "max_position_embeddings": self.positions}
        return Bart(
            BartConfig.tiny(vocab_size=WORD_PIECES.words, final_logits_bias=False, **sizes, **sides, **tokens)
        )

    def _sizes(self) -> dict[str, int]:
        return {
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_size": self.hidden,
            "max_position_embeddings": self.positions,
        }

    def load_data(self) -> Samples:
        """Inputs and targets of all samples, with one length, and how many tokens each sample has."""
        match self.task:
            case "package":
                task = package_task(classes=PACKAGES, length=self.sequence)
                return Samples((task.tokens, task.mask.long(), task.labels), task.mask.sum(1))
            case "words":
                tokens, targets = masked_samples(self.sequence, self.seed)
                return Samples((tokens.int(), targets.int()), _all(self.sequence, tokens))
            case "denoising":
                tokens, decoder_tokens, mask, targets = denoising_samples(self.sequence, self.seed)
                sent = (tokens.int(), decoder_tokens.int(), mask.byte(), targets.int())
                return Samples(sent, mask.sum(1) + self.sequence)
        corpus = corpus_tokens("bytes").to(torch.uint8)  # it travels to the ranks
        tokens, targets = language_windows(corpus, self.sequence)
        return Samples((tokens, targets), _all(self.sequence, tokens))


class Samples(NamedTuple):
    tensors: tuple[Tensor, ...]
    tokens: Tensor  # (samples,)


def _all(sequence: int, tokens: Tensor) -> Tensor:
    return torch.full((len(tokens),), sequence)
