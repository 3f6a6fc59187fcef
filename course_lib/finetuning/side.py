"""Side tuning (Zhang et al., arXiv:1912.13503): a small trained network beside a frozen one, and a blend of both.

    R(x) = α B(x) + (1 - α) S(x)        B the frozen base, S the side network, α = sigmoid(a), trained

Adapters, LoRA and prompts stand inside the model, so their gradients come through the layers above them. Here backward
never enters B: it runs without a graph, and of its activations only the output is kept, for the gradient of α.

Shapes in comments: ``batch``, ``seq``, ``hidden``, ``narrow`` (the side network's own width).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from course_lib.finetuning.narrow.chain import (
    Beside,
    Call,
    Mix,
    begin,
    blend,
    carry,
    change,
    spread,
    without_dropout,
)
from course_lib.finetuning.narrow.decoders import SIDES, Blend, add_side_decoder
from course_lib.finetuning.sites import beside, train_only
from course_lib.models.bert import Bert, BertEncoder
from course_lib.models.names import replace_module


class SideTuning(nn.Module):
    """R(x), called as B is.

    Args:
        base: B; it stays in evaluation mode, and is frozen.
        side: S, with outputs of B's shape.
        alpha: where α starts, between 0 and 1.
        pooler: makes ``(R, pooled)`` of R, for a classifier above. None: the result is R.
    """

    def __init__(
        self, base: nn.Module, side: nn.Module, alpha: float = 0.5, pooler: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.mix = Mix(alpha)
        self.base, self.side, self.pooler = base.requires_grad_(False).eval(), side, pooler

    @property
    def alpha(self) -> Tensor:
        return self.mix.alpha

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        with torch.no_grad():
            B = self.base(*inputs, **named)
        R = self.alpha * B + (1 - self.alpha) * self.side(*inputs, **named)
        return R if self.pooler is None else (R, self.pooler(R))

    def train(self, mode: bool = True) -> SideTuning:
        super().train(mode)
        self.base.eval()  # dropout would be noise: nothing in B is trained
        return self

    def in_chain(self, name: str, chain: Mapping[str, Call]) -> dict[str, Call]:
        """The parts of a BERT's chain with those of the side network between them; see ``narrow/chain.py``."""
        without_dropout(self.base)
        frozen, own = len(self.base.encoder.layer), len(self.side.encoder.layer)
        layers = spread(frozen, own, f"{name}.side.encoder.layer", bert_side_layer)
        new: dict[str, Call] = {}
        for pattern, how in chain.items():
            match pattern.removeprefix(f"{name}."):
                case "embeddings":
                    new |= {f"{name}.base.embeddings": how, f"{name}.side.down": begin(0)}
                case "encoder.layer.*":
                    new[f"{name}.base.encoder.layer.*"] = Beside(carry(how), layers)
                    new |= {f"{name}.side.up": change(-1), f"{name}.mix": blend(0, 1)}
                case _:
                    new[pattern] = how
        return new


def bert_side_layer(layer: nn.Module, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    *mask, s = rest
    return x, *mask, layer(s, *mask)


class BertSide(nn.Module):
    """A narrow BERT on the frozen one's embeddings: down to ``narrow``, a few layers, and up again.

    Args:
        bert: its embeddings are used and not trained; they belong to ``bert``, and are no part of this module.
        layers, hidden_size: depth and width (``narrow``); the width must divide into the heads of ``bert``.
    """

    def __init__(self, bert: Bert, layers: int = 2, hidden_size: int = 96) -> None:
        super().__init__()
        if layers < 1 or hidden_size < 1:
            raise ValueError(f"{layers} layers of width {hidden_size}: both must be at least 1.")
        config = replace(
            bert.config,
            num_hidden_layers=layers,
            hidden_size=hidden_size,
            intermediate_size=4 * hidden_size,
        )
        self.down = nn.Linear(bert.config.hidden_size, hidden_size)
        self.encoder = BertEncoder(config)
        self.up = nn.Linear(hidden_size, bert.config.hidden_size)
        self._embeddings = [bert.embeddings]  # in a list, so that it is not registered a second time

    def forward(
        self, tokens: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        with torch.no_grad():
            x = self._embeddings[0](tokens, token_types)  # (batch, seq, hidden)
        keys = None if mask is None else mask[:, None, None, :].bool()
        return self.up(self.encoder(self.down(x), keys))  # narrow within, (batch, seq, hidden) again


def add_side(
    model: nn.Module,
    layers: int = 2,
    hidden_size: int = 96,
    alpha: float = 0.5,
    *,
    also: Iterable[str] | None = None,
) -> SideTuning | Blend:
    """Side tuning of a BertClassifier in place: its ``bert`` becomes a ``SideTuning``. A Bert is only wrapped.

    A Llama, a GPT and a Bart get a narrow decoder beside their own (``narrow/decoders.py``).

    The pooler comes after the blend, so that it reads R. All but the side network, α and ``also`` (None: the
    classifier) is frozen.

    Raises:
        ValueError: the model is no Bert, BertClassifier, Llama, GPT or Bart; a depth, width or alpha out of range.
    """
    if isinstance(model, tuple(SIDES)):
        like = next(model.parameters())
        blend = add_side_decoder(model, layers, hidden_size, alpha)
        beside(blend, like).train(model.training)
        train_only(model, [blend], also)
        return blend
    bert = model if isinstance(model, Bert) else getattr(model, "bert", None)
    if not isinstance(bert, Bert):
        raise ValueError(
            f"side tuning needs a Bert, BertClassifier, Llama, GPT or Bart; this is a {type(model).__name__}."
        )
    tuned = SideTuning(bert, BertSide(bert, layers, hidden_size), alpha, bert.pooler)
    bert.pooler = None
    like = next(bert.parameters())
    beside(tuned, like).train(model.training)
    if model is not bert:
        replace_module(model, "bert", tuned)
    train_only(model if model is not bert else tuned, [tuned.side, tuned.mix], also)
    return tuned
