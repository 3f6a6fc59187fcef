"""P-tuning v1 with anchors (Liu et al., arXiv:2103.10385): words stand between the trained vectors of a prompt.

    [P_1 … P_3] task [P_4 … P_6] : open file >          the anchor "task" keeps its embedding, only the P are trained

An anchor is a word that has to do with the task. The encoder sees the trained vectors alone, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from course_lib.finetuning.prompt import PromptEncoder, SoftPrompt
from course_lib.finetuning.sites import at, check_positions, root_of, train_only


class Template(SoftPrompt):
    """A prompt of ``n`` places; the trained vectors stand in some of them, and anchors in the others.

    Args:
        P: the trained vectors before the encoder, ``(k, d)``.
        anchors: the embeddings of the anchors' tokens, ``(n, d)``; what stands in a trained place does not matter.
        trained: which places are trained, ``(n,)`` bool, k of them true.
    """

    def __init__(self, P: Tensor, anchors: Tensor, trained: Tensor, encoder: nn.Module | None = None) -> None:
        super().__init__(P, encoder)
        self.n = len(anchors)
        self.register_buffer("anchors", anchors.detach().clone())
        self.register_buffer("trained", trained)

    def forward(self) -> Tensor:
        whole = self.anchors.clone()
        whole[self.trained] = super().forward().to(whole.dtype)
        return whole  # (n, d)

    @torch.no_grad()
    def fold(self) -> None:
        if self.encoder is not None:
            self.encoder.eval()
            self.P.copy_(super().forward())
            self.encoder = None


def add_template(
    model: nn.Module,
    template: Sequence[int | Sequence[int]],
    encoder: Literal["lstm", "mlp"] = "lstm",
    hidden_size: int | None = None,
    *,
    also: Iterable[str] | None = None,
) -> Template:
    """P-tuning with anchors, in place: the model is frozen. ``fold()`` the prompt after training.

    Args:
        model: a Bert, BertClassifier, GPT or Llama. It is called as before.
        template: numbers of trained vectors, and anchors as lists of token ids: ``(3, ids_of_a_word, 3)``.
        encoder, hidden_size, also: as for ``add_p_tuning``.

    Raises:
        ValueError: a number below 1, a token that the model does not have, no trained vector, no position for text.
    """
    root, sites = root_of(model)
    E = at(root, sites.tokens)[0].weight  # (vocab, d)
    tokens, trained = [], []
    for piece in template:
        ids = [0] * piece if isinstance(piece, int) else list(piece)
        if not ids or not all(0 <= i < len(E) for i in ids):
            raise ValueError(
                f"the template has {piece!r}; give a number of vectors, at least 1, or token ids below {len(E)}."
            )
        tokens += ids
        trained += [isinstance(piece, int)] * len(ids)
    if not any(trained):
        raise ValueError(f"the template {template!r} has no trained vector; give at least one number.")
    check_positions(root, len(tokens), 1)
    d = E.shape[1]
    network = PromptEncoder(d, d if hidden_size is None else hidden_size, encoder)
    P = torch.randn(sum(trained), d, device=E.device)
    anchors = E[torch.tensor(tokens, device=E.device)]
    prompt = Template(P, anchors, torch.tensor(trained, device=E.device), network)
    prompt.attach(root)
    train_only(model, [prompt], also)
    return prompt
