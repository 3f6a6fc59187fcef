"""Mixtral (arXiv:2401.04088): a LLaMA whose layers have several MLPs, the experts, of which a token visits ``k``.

Shapes in comments: ``batch``, ``seq``, ``hidden``; ``copies``: a token has one for each of its experts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.models.llama import Llama, LlamaConfig, LlamaLayer, LlamaModel
from course_lib.models.norms import RMSNorm


@dataclass(frozen=True)
class MixtralConfig(LlamaConfig):
    """Named as in a Hugging Face ``config.json``. The defaults are Mixtral-8x7B."""

    intermediate_size: int = 14336  # of one expert
    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 32768
    rope_theta: float = 1e6
    num_local_experts: int = 8
    num_experts_per_tok: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.num_experts_per_tok <= self.num_local_experts:
            raise ValueError(
                f"num_experts_per_tok is {self.num_experts_per_tok}; it must be from 1 to the "
                f"{self.num_local_experts} experts."
            )

    @classmethod
    def tiny(cls, **changes: object) -> MixtralConfig:
        """LLaMA's tiny model with four experts, half as wide as its MLP; ``changes`` replace its fields."""
        experts = {"intermediate_size": 172, "num_local_experts": 4, "rope_theta": 10000.0}
        return super().tiny(**(experts | changes))


class Expert(nn.Module):
    """SwiGLU: ``w1`` is the gate, ``w3`` the up projection, ``w2`` leads back. It may get no token at all."""

    def __init__(self, config: MixtralConfig) -> None:
        super().__init__()
        h, width = config.hidden_size, config.intermediate_size
        self.w1 = nn.Linear(h, width, bias=False)
        self.w2 = nn.Linear(width, h, bias=False)
        self.w3 = nn.Linear(h, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Experts(nn.ModuleDict):
    """Experts by their numbers: all of a layer, or those that are on one device."""

    def __init__(self, experts: Iterable[tuple[str, nn.Module]]) -> None:
        super().__init__(experts)

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        """Copies ``(copies, hidden)`` that lie by expert, ``sizes`` of each -> what the experts make of them."""
        parts = zip(self.values(), x.split(sizes.tolist()), strict=True)
        return torch.cat([expert(part) for expert, part in parts])


class SparseMLP(nn.Module):
    """A router and experts in place of an MLP: ``(batch, seq, hidden)`` in and out. No copy is dropped.

    Attributes:
        probabilities: of the last tokens that went through, ``(tokens, experts)``, before the choice.
        chosen: the experts of each, ``(tokens, k)``.
    """

    def __init__(self, config: MixtralConfig) -> None:
        super().__init__()
        self.k = config.num_experts_per_tok
        self.gate = nn.Linear(config.hidden_size, config.num_local_experts, bias=False)
        self.experts = Experts((str(e), Expert(config)) for e in range(config.num_local_experts))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)  # (tokens, hidden)
        logits = self.gate(tokens)
        # In 16 bits two experts would often be equally likely.
        p = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        weight, chosen = p.topk(self.k)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype).flatten()
        self.probabilities, self.chosen = p, chosen
        expert, copies = chosen.flatten().sort(stable=True)  # by expert; copy i is one of token i // k
        y = self.experts(tokens[copies // self.k], expert.bincount(minlength=p.shape[1]))
        y = y * weight[copies, None]
        return torch.zeros_like(tokens).index_add(0, copies // self.k, y).view_as(x)


class MixtralLayer(LlamaLayer):
    def __init__(self, config: MixtralConfig) -> None:
        super().__init__(config)
        self.mlp = SparseMLP(config)


class MixtralModel(nn.Module):
    """Tokens ``(batch, seq)`` to hidden states ``(batch, seq, hidden)``.

    No ``LlamaModel``, though it computes as one: what cuts a LLaMA's MLP must not take it for one.
    """

    forward = LlamaModel.forward

    def __init__(self, config: MixtralConfig) -> None:
        super().__init__()
        self.max_length = config.max_position_embeddings
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(MixtralLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Mixtral(nn.Module):
    """Tokens ``(batch, seq)`` to the logits of the token after each, ``(batch, seq, vocab)``; attention, norms and ends
    are LLaMA's. With a ``cache``, ``tokens`` are those that follow what the cache holds."""

    forward = Llama.forward

    def __init__(self, config: MixtralConfig) -> None:
        super().__init__()
        self.config = config
        self.model = MixtralModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
