"""The objectives of ``objectives.py``, each trained for some hundred steps, and all asked for the same hidden words.

Causal, masked and blanks are one stack of GPT's blocks: only what it reads and its mask differ. T5's spans and BART's
whole text are an encoder and a decoder. Each learns from Python's documentation in its 1,000 most frequent word
pieces. Of every text of 48 pieces 9 are hidden, in three spans. The held-out loss counts those 9 alone, so that the
objectives can be compared, though each is asked for something else in training.

``python -m course_lib.text.pretraining`` trains all of them under two seeds and writes ``pretrained.json``.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.data.denoising import IGNORED
from course_lib.data.docs import corpus_tokens
from course_lib.models.bart import Bart, BartConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.text import objectives
from course_lib.text.objectives import END, MASK, NOTHING, START, Seen, Spans

WORDS, LENGTH, HIDDEN, SPANS = 1000, 48, 9, 3
MARKS = [MASK, START, END, *(f"<{i}>" for i in range(SPANS))]  # the tokens from WORDS on
HELD_OUT = 512  # texts at the end of the documentation
STEPS, EVERY, BATCH, RATE, SEEDS = 300, 100, 32, 3e-3, 2
KEPT = Path(__file__).with_name("pretrained.json")

OBJECTIVES = {
    "causal, GPT": lambda text, spans: objectives.causal(text),
    "masked, BERT": objectives.masked,
    "spans, T5": objectives.spans_of_t5,
    "whole text, BART": objectives.whole_text_of_bart,
    "blanks, GLM": objectives.blanks_of_glm,
}


@cache
def texts() -> Tensor:
    """``(texts, 48)``: a frequent piece is a token from 1 on, and all others are token 0."""
    pieces = corpus_tokens("wordpiece")
    frequent = pieces.bincount().argsort(descending=True, stable=True)[: WORDS - 1]
    tokens = torch.zeros(int(pieces.max()) + 1, dtype=torch.long)
    tokens[frequent] = torch.arange(1, WORDS)
    return tokens[pieces][: len(pieces) // LENGTH * LENGTH].view(-1, LENGTH)


def draw_spans(draw: random.Random) -> list[tuple[int, int]]:
    """Three spans of 9 tokens together, with at least one token between two of them."""
    cuts = [0, *sorted(draw.sample(range(1, HIDDEN), SPANS - 1)), HIDDEN]
    gaps = sorted(draw.sample(range(1, LENGTH - HIDDEN), SPANS))  # tokens that stay before each span
    return [(gap + a, gap + b) for gap, a, b in zip(gaps, cuts, cuts[1:], strict=False)]


class Batch(NamedTuple):
    """Texts as a model takes them. Their spans lie in the same places."""

    source: Tensor  # (batch, source); of length 0 without an encoder
    inputs: Tensor  # (batch, seq)
    targets: Tensor  # (batch, seq), -100 where nothing is asked
    hidden: Tensor  # (seq,) bool: the target is one of the 9 hidden tokens
    mask: Tensor  # (seq, seq) bool
    positions: Tensor  # (2, seq)


def batch_of(objective: str, text: Tensor, spans: Spans) -> Batch:
    """``text`` ``(batch, 48)``, with its places in the hands of the objective, which thinks that they are words."""
    places = [str(i) for i in range(text.shape[1])]
    seen: Seen = OBJECTIVES[objective](places, spans)
    table = torch.cat((text, torch.arange(WORDS, WORDS + len(MARKS)).expand(len(text), -1)), dim=1)
    column = {name: i for i, name in enumerate([*places, *MARKS])}

    def tokens(names: Sequence[str]) -> Tensor:
        return table[:, [column.get(name, 0) for name in names]]

    asked = torch.tensor([name != NOTHING for name in seen.targets])
    taken = {str(i) for start, end in spans for i in range(start, end)}
    positions = seen.positions or [(i, 0) for i in range(len(seen.inputs))]
    return Batch(
        tokens(seen.source) if seen.source else text[:, :0],
        tokens(seen.inputs),
        tokens(seen.targets).masked_fill(~asked, IGNORED),
        torch.tensor([name in taken for name in seen.targets]),
        seen.mask,
        torch.tensor(positions).T,
    )


class Stack(GPT):
    """GPT under any mask, with GLM's second position: 0 outside of spans."""

    def __init__(self) -> None:
        vocabulary = WORDS + len(MARKS)
        super().__init__(GPTConfig.tiny(vocab_size=vocabulary, hidden_size=64, max_length=2 * LENGTH))
        self.within = nn.Embedding(HIDDEN + 1, 64)
        nn.init.normal_(self.within.weight, std=0.02)

    def read(self, batch: Batch) -> Tensor:
        x = self.embedding(batch.inputs, batch.positions[0]) + self.within(batch.positions[1])
        for block in self.blocks:
            x = block(x, mask=batch.mask)
        return self.head(self.norm(x))  # (batch, seq, vocab)


class TwoSides(Bart):
    """A small BART: two layers read, two write."""

    def __init__(self) -> None:
        sizes = {"d_model": 64, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256}
        super().__init__(BartConfig.tiny(vocab_size=WORDS + len(MARKS), final_logits_bias=False, **sizes))

    def read(self, batch: Batch) -> Tensor:
        return self(batch.source, batch.inputs)  # (batch, seq, vocab)


def held_out_loss(model: Stack | TwoSides, objective: str) -> float:
    """Per hidden token, in nats. The spans are drawn, the same for every objective."""
    draw, losses = random.Random(0), []
    with torch.no_grad():
        for text in texts()[-HELD_OUT:].split(32):
            batch = batch_of(objective, text, draw_spans(draw))
            logits = model.read(batch)[:, batch.hidden]
            losses.append(F.cross_entropy(logits.flatten(0, 1), batch.targets[:, batch.hidden].flatten()))
    return torch.stack(losses).mean().item()


def pretrain(objective: str, steps: int = STEPS, seed: int = 0) -> list[float]:
    """The held-out loss of a new model before training and after every 100 steps.

    Raises:
        ValueError: an unknown objective.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"no objective is called {objective!r}; choose one of {', '.join(OBJECTIVES)}.")
    torch.manual_seed(seed)
    draw, learned = random.Random(seed), texts()[:-HELD_OUT]
    model = TwoSides() if objective in ("spans, T5", "whole text, BART") else Stack()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    found = [held_out_loss(model, objective)]
    for step in range(1, steps + 1):
        chosen = torch.tensor(draw.choices(range(len(learned)), k=BATCH))
        batch = batch_of(objective, learned[chosen], draw_spans(draw))
        optimizer.zero_grad()
        F.cross_entropy(model.read(batch).flatten(0, 1), batch.targets.flatten()).backward()
        optimizer.step()
        if step % EVERY == 0 or step == steps:
            found.append(held_out_loss(model, objective))
    return found


def kept() -> dict[str, list[float]]:
    """Objective -> the held-out loss before training and after every 100 steps, the mean of two seeds."""
    runs = json.loads(KEPT.read_text(encoding="utf-8"))
    return {
        name: [statistics.mean(losses) for losses in zip(*found, strict=True)] for name, found in runs.items()
    }


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors are small
    runs = {
        name: [[round(loss, 3) for loss in pretrain(name, seed=seed)] for seed in range(SEEDS)]
        for name in OBJECTIVES
    }
    KEPT.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
