"""Prompt tuning (Lester et al., arXiv:2104.08691) and P-tuning (Liu et al., arXiv:2103.10385).

Trained vectors P stand in front of the text, in the place of the embeddings of n virtual tokens; the model is frozen:

    [P_1 … P_n; E(x_1) … E(x_seq)]        (batch, n + seq, d)

P-tuning computes P with a small network while training, and throws the network away afterwards.

Shapes in comments: ``batch``, ``seq`` (of the text), ``n`` virtual tokens, ``d`` (hidden).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.finetuning.sites import (
    add_once,
    arguments_of,
    at,
    bound,
    check_positions,
    device_beside,
    root_of,
    train_only,
)
from course_lib.models.bart import Bart
from course_lib.models.masks import causal_mask


class SoftPrompt(nn.Module):
    """The virtual tokens' embeddings ``(n, d)``, and what makes room for them in a model.

    Args:
        P: where they start, ``(n, d)``.
        encoder: a network that computes them from P, ``(n, d)`` to ``(n, d)``. None: they are P.
        pooler_reads: a BERT's pooler reads the first token of the ``"text"``, [CLS], or the first of the
            ``"prompt"``, as in peft.
    """

    def __init__(self, P: Tensor, encoder: nn.Module | None = None, pooler_reads: str = "text") -> None:
        super().__init__()
        if pooler_reads not in ("text", "prompt"):
            raise ValueError(f"pooler_reads is {pooler_reads!r}; choose 'text' or 'prompt'.")
        self.P = nn.Parameter(P.detach().clone())
        self.n = len(P)  # as a number: what is sharded has another length outside its forward
        self.encoder = encoder
        self.pooler_reads = pooler_reads
        self.expected = False  # the next embedding of tokens is that of the text

    def forward(self) -> Tensor:
        if self.encoder is None:
            return self.P.clone()  # ZeRO 3 frees P itself after this call
        return self.encoder(self.P)  # (n, d)

    @torch.no_grad()
    def fold(self) -> None:
        """After training: keep what the encoder computes, and throw the encoder away. Outputs stay the same."""
        if self.encoder is not None:
            self.encoder.eval()
            self.P.copy_(self())
            self.encoder = None

    def attach(self, root: nn.Module) -> None:
        """Become part of the module that takes tokens; four hooks put the virtual tokens in and out."""
        _, sites = root_of(root)
        add_once(root, "prompt", self)
        self.kind, self.causal = type(root), sites.causal
        root.register_forward_pre_hook(self._make_room, with_kwargs=True)
        at(root, sites.tokens)[0].register_forward_hook(self._insert)
        root.register_forward_hook(self._cut_off)
        if getattr(root, "pooler", None) is not None and self.pooler_reads == "text":
            root.pooler.register_forward_pre_hook(self._skip)

    def _make_room(
        self,
        root: nn.Module,
        args: tuple,
        kwargs: dict[str, Any],
    ) -> tuple[tuple, dict]:
        """Lengthen all inputs by n in front: tokens that ``_insert`` replaces, and a mask that sees them."""
        return (), self.lengthen(arguments_of(root, args, kwargs, self.n))

    def lengthen(self, call: dict[str, Any]) -> dict[str, Any]:
        n = self.n
        for name in ("tokens", "token_types"):
            if call.get(name) is not None:
                call[name] = F.pad(call[name], (n, 0))  # (batch, n + seq)
        if call.get("mask") is not None:
            mask = call["mask"]
            call["mask"] = widen_causal(mask, n) if self.causal else F.pad(mask, (n, 0), value=1)
        self.expected = True
        return call

    def _insert(self, _: nn.Module, args: tuple, embedded: Tensor) -> Tensor:
        if (
            not self.expected
        ):  # BART's decoder has the same embedding, and the prompt stands before the encoder's text
            return embedded
        self.expected = False
        P = self()  # (n, d), for every text of the batch the same
        text = embedded[:, self.n :]  # (batch, seq, d)
        return torch.cat((P.expand(len(text), -1, -1), text), dim=1)

    def _skip(self, pooler: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return (args[0][:, self.n :],)  # (batch, seq, d)

    def _cut_off(self, root: nn.Module, args: tuple, output: Any) -> Any:
        """What the model computed at the virtual tokens' own positions is no part of its output."""
        if isinstance(output, tuple):
            return tuple(self._cut_off(root, args, x) for x in output)
        if (
            self.kind is Bart or output.dim() == 2
        ):  # the decoder's logits are the text's; a pooled vector has no positions
            return output
        return output[:, self.n :]

    def in_chain(self, name: str, chain: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        """In a pipeline: the first part lengthens the inputs, and what follows the layers gets the text's positions."""
        new: dict[str, Callable[..., Any]] = {name: SoftPrompt._first_part}
        above = False
        for pattern, how in chain.items():
            cut = (
                above and self.kind is not Bart and not pattern.endswith("pooler")
            )  # which has a hook of its own
            new[pattern] = partial(_of_text, how, self.n) if cut else how
            above = pattern.endswith("*")
        return new

    def _first_part(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.lengthen(bound(self.kind, inputs, {})).values())


def _of_text(call: Callable[..., Any], n: int, module: nn.Module, x: Tensor, *rest: Tensor) -> Any:
    return call(module, x[:, n:], *rest)


def widen_causal(mask: Tensor, n: int) -> Tensor:
    """A mask ``(…, seq, seq)`` for n virtual tokens in front: ``(…, n + seq, n + seq)``.

    The text sees all of them; they see each other causally, and none of the text.
    """
    seq = mask.shape[-1]
    causal = causal_mask(n + seq, device=mask.device)
    if mask.is_floating_point():  # added to the scores
        causal = torch.zeros_like(causal, dtype=mask.dtype).masked_fill(~causal, float("-inf"))
    whole = causal.expand(*mask.shape[:-2], -1, -1).clone()
    whole[..., n:, n:] = mask
    return whole


def add_prompt(
    model: nn.Module,
    n: int,
    start: Literal["random", "vocabulary"] | Sequence[int] = "random",
    *,
    pooler_reads: str = "text",
    also: Iterable[str] | None = None,
) -> SoftPrompt:
    """Prompt tuning, in place: the model is frozen, and n virtual tokens are trained.

    Args:
        model: a Bert, BertClassifier, GPT, Llama or Bart, where they stand before the encoder's text. It is called as
            before, and its outputs have the text's shape.
        start: uniform between -1/2 and 1/2; embeddings of tokens drawn from the vocabulary; or those of these token
            ids (a text), repeated or cut to n.
        pooler_reads: what a BERT's pooler reads, see ``SoftPrompt``.
        also: modules that are trained besides; None: a BertClassifier's classifier.

    Raises:
        ValueError: n is below 1 or leaves no position for text; an unknown start; a model of no known family.
    """
    root, sites = root_of(model)
    check_positions(root, n, 1)
    E = at(root, sites.tokens)[0].weight  # (vocab, d)
    if start == "random":
        P = torch.empty(n, E.shape[1], device=device_beside(E)).uniform_(-0.5, 0.5)
    elif start == "vocabulary":
        P = E[torch.randint(len(E), (n,), device=E.device)]
    else:
        P = E[_repeated(start, n, len(E), E.device)]
    return _attach(model, SoftPrompt(P, pooler_reads=pooler_reads), also)


def add_p_tuning(
    model: nn.Module,
    n: int,
    encoder: Literal["lstm", "mlp"] = "lstm",
    hidden_size: int | None = None,
    *,
    pooler_reads: str = "text",
    also: Iterable[str] | None = None,
) -> SoftPrompt:
    """P-tuning, in place: prompt tuning whose vectors a ``PromptEncoder`` computes. ``fold()`` it after training.

    Args: as for ``add_prompt``; ``hidden_size``: the encoder's width, None: d.

    Raises:
        ValueError: as ``add_prompt``, or an unknown encoder.
    """
    root, sites = root_of(model)
    check_positions(root, n, 1)
    E = at(root, sites.tokens)[0].weight
    d = E.shape[1]
    network = PromptEncoder(d, d if hidden_size is None else hidden_size, encoder)
    return _attach(model, SoftPrompt(torch.randn(n, d, device=device_beside(E)), network, pooler_reads), also)


class PromptEncoder(nn.Module):
    """P-tuning's network, ``(n, d)`` to ``(n, d)``: an LSTM in both directions and two linear layers, or an MLP.

    It ties the virtual tokens together: each gradient moves all of them.
    """

    def __init__(self, d: int, hidden_size: int, kind: str = "lstm", layers: int = 2) -> None:
        super().__init__()
        h = hidden_size
        if h < 1:
            raise ValueError(f"hidden_size is {h}; an encoder needs at least 1.")
        if kind not in ("lstm", "mlp"):
            raise ValueError(f"the encoder is {kind!r}; choose 'lstm' or 'mlp'.")
        self.lstm = nn.LSTM(d, h, layers, bidirectional=True, batch_first=True) if kind == "lstm" else None
        widths = (2 * h, 2 * h, d) if kind == "lstm" else (d, h, h, d)
        linears = [nn.Linear(a, b) for a, b in pairwise(widths)]
        self.mlp = nn.Sequential(*(m for linear in linears for m in (linear, nn.ReLU())))[:-1]

    def forward(self, P: Tensor) -> Tensor:
        if self.lstm is not None:
            with torch.autocast(P.device.type, enabled=False):  # not every CPU has an LSTM in bf16
                P = self.lstm(P[None])[0][0]  # (n, 2 hidden_size)
        return self.mlp(P)  # (n, d)


def _attach(model: nn.Module, prompt: SoftPrompt, also: Iterable[str] | None) -> SoftPrompt:
    prompt.attach(root_of(model)[0])
    train_only(model, [prompt], also)
    return prompt


def _repeated(ids: Sequence[int], n: int, vocabulary: int, device: torch.device) -> Tensor:
    ids = list(ids) if not isinstance(ids, str) else []
    if not ids or not all(isinstance(i, int) and 0 <= i < vocabulary for i in ids):
        raise ValueError(
            f"start must be 'random', 'vocabulary' or token ids from 0 to {vocabulary - 1}, at least one."
        )
    return torch.tensor((ids * n)[:n], device=device)
