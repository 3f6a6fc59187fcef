"""What is to be trained, on what, and how: the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course_lib.finetuning.methods import virtual_tokens
from course_lib.models.experts import sparse_layers
from course_lib.train.material.models import Sizes, random_model
from course_lib.train.material.pretrained import Read, Weights, open_weights
from course_lib.train.material.samples import Samples, load_samples
from course_lib.train.tuning import tune
from simulator.inputs.plan import Plan


@dataclass(frozen=True)
class Job:
    """One run of ``course_lib.train``.

    Args:
        model, task: gpt, llama, mixtral and deepseek predict the next byte of Python's documentation (``language``).
            bert says from which package of the standard library a docstring comes (``package``), whether two words of
            a sentence were swapped (``word-order``), or which words were masked (``words``). bart writes a text
            without the noise that was put in (``denoising``).
        layers, hidden, heads, sequence: of the model; ``sequence`` tokens are a sample. BART has ``layers`` in the
            encoder and as many in the decoder.
        weights: pretrained ones that the model starts from, and which say how large it is: a folder, a name on the
            hub, or ``minilm``; None: random ones.
        tuning: the method of fine-tuning, and its settings.
        placement: where the blocks of each layer are, and how many heads, columns and tokens each rank has; None:
            as the plan says.
        compression: how data-parallel ranks send gradients, and its settings; None: as they are.
        balance_loss: the weight of the loss that keeps experts equally busy; None: there is none.
        capacity_factor: how much of its fair share of a sequence an expert takes; None: all that it is sent.
        save_every: steps between two checkpoints in ``checkpoint``; the last step is saved, too.
        profile: the folder for a trace of every rank; None: none is recorded.
        peak_flops: of all devices together, for MFU; None: not known.
    """

    model: str
    plan: Plan
    task: str = "language"
    layers: int = 4
    hidden: int = 128
    heads: int = 4
    sequence: int = 64
    weights: str | None = None
    tuning: Mapping[str, Any] = field(default_factory=lambda: {"method": "full"})
    placement: Mapping[str, Any] | None = None
    compression: Mapping[str, Any] | None = None
    steps: int = 20
    lr: float = 1e-3
    clip: float = 1.0
    balance_loss: float | None = None
    capacity_factor: float | None = None
    seed: int = 0
    checkpoint: Path | None = None
    save_every: int | None = None
    resume: bool = False
    profile: Path | None = None
    peak_flops: float | None = None

    @property
    def positions(self) -> int:
        """That the model has: for the tokens of a sample, and for virtual tokens in front of them."""
        return self.sequence + max(0, virtual_tokens(self.tuning))

    def make_model(self) -> nn.Module:
        """From the seed; under any plan the same. It is as large as the simulator takes it: nothing is added yet.

        What comes from ``weights`` is on the meta device: ``reader`` gives it values.
        """
        torch.manual_seed(self.seed)
        if self.opened is not None:
            model = self.opened.make_model(self.task)
        else:
            sizes = Sizes(self.layers, self.hidden, self.heads, self.positions)
            model = random_model(self.model, self.task, sizes)
        for layer in sparse_layers(model):
            layer.alpha, layer.capacity_factor = self.balance_loss or 0.0, self.capacity_factor
        return model

    def tuned(self, model: nn.Module) -> nn.Module:
        """``model`` with what the method of fine-tuning adds to it, from the seed."""
        torch.manual_seed(self.seed + 1)
        if self.opened is not None and self.tuning.get("start") == "vocabulary":
            self.opened.fill_tokens(model)
        tune(model, **self.tuning)
        return model

    @property
    def opened(self) -> Weights | None:
        return None if self.weights is None else open_weights(self.weights)

    def reader(self, model: nn.Module) -> Read | None:
        """For a tuned model; None: it has all its values."""
        return None if self.opened is None else self.opened.reader(model)

    def load_data(self) -> Samples:
        """Inputs and targets of all samples."""
        tokenizer = self.opened.tokenizer() if self.opened is not None and self.task == "language" else None
        return load_samples(self.task, self.sequence, self.seed, tokenizer)
