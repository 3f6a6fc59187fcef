"""Mixtral (arXiv:2401.04088): a LLaMA whose layers have several MLPs, the experts, of which a token visits ``k``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_lib.models.experts import Experts, SparseMLP
from course_lib.models.llama import Decoder, DecoderModel, LlamaConfig, LlamaLayer


@dataclass(frozen=True)
class MixtralConfig(LlamaConfig):
    """Named as in a Hugging Face ``config.json``. The defaults are Mixtral-8x7B."""

    intermediate_size: int = 14336  # of one expert
    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 32768
    rope_theta: float = 1e6
    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    balance_loss: float = 0.0  # its weight beside the task's loss
    capacity_factor: float | None = None  # see SparseMLP; None: no token is dropped

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


class MixtralMLP(SparseMLP):
    """Softmax over all experts; of the ``k`` largest the weights are made to add up to 1."""

    def __init__(self, config: MixtralConfig) -> None:
        experts = config.num_local_experts
        gate = nn.Linear(config.hidden_size, experts, bias=False)
        stacked = Experts(experts, config.hidden_size, config.intermediate_size)
        super().__init__(stacked, gate, config.capacity_factor)
        self.k, self.alpha = config.num_experts_per_tok, config.balance_loss

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(tokens)
        # In 16 bits two experts would often be equally likely.
        p = self.probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        weights, chosen = p.topk(self.k)
        return weights / weights.sum(-1, keepdim=True), chosen


class MixtralLayer(LlamaLayer):
    def __init__(self, config: MixtralConfig) -> None:
        super().__init__(config, MixtralMLP(config))


class MixtralModel(DecoderModel):
    """No ``LlamaModel``, though it computes as one: what cuts a LLaMA's MLP must not take it for one."""

    def layer(self, config: MixtralConfig, number: int) -> MixtralLayer:
        return MixtralLayer(config)


class Mixtral(Decoder):
    """Attention, norms and ends are LLaMA's."""

    kind = MixtralModel
    config: MixtralConfig
