"""DeepSeek-V3 (arXiv:2412.19437): latent attention, and in all but the first three layers many small experts.

Every token visits the shared experts, and ``k`` of the others. A bias, which no gradient changes, counts in the choice
of these and not in their weights (arXiv:2408.15664). They lie in groups, and a token goes to the best groups alone: so
it goes to few nodes, where a group's experts are on one node.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_lib.models.experts import Experts, SparseMLP
from course_lib.models.latent_attention import LatentAttention
from course_lib.models.llama import Decoder, DecoderModel, LlamaConfig, LlamaLayer, LlamaMLP


@dataclass(frozen=True)
class DeepseekConfig(LlamaConfig):
    """Named as in a Hugging Face ``config.json``. The defaults are DeepSeek-V3, without its scaling of RoPE."""

    vocab_size: int = 129280
    hidden_size: int = 7168
    intermediate_size: int = 18432  # of the first layers
    moe_intermediate_size: int = 2048  # of one expert
    num_hidden_layers: int = 61
    num_attention_heads: int = 128
    rms_norm_eps: float = 1e-6
    q_lora_rank: int | None = 1536
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    first_k_dense_replace: int = 3
    n_shared_experts: int = 1
    n_routed_experts: int = 256
    num_experts_per_tok: int = 8
    n_group: int = 8
    topk_group: int = 4
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 2.5
    bias_update_speed: float = 0.001  # of the router's bias, after each step
    balance_loss: float = 0.0  # its weight beside the task's loss; DeepSeek-V3 took 0.0001
    capacity_factor: float | None = None  # see SparseMLP; None: no token is dropped

    def __post_init__(self) -> None:
        if not 1 <= self.topk_group <= self.n_group or self.n_routed_experts % self.n_group:
            raise ValueError(
                f"n_group is {self.n_group} and topk_group {self.topk_group}; groups must share the "
                f"{self.n_routed_experts} experts equally, and a token goes to 1 to n_group of them."
            )
        if self.n_routed_experts < 2 * self.n_group:
            raise ValueError(f"n_group is {self.n_group}; a group must have at least 2 experts.")
        most = self.topk_group * self.n_routed_experts // self.n_group
        if not 1 <= self.num_experts_per_tok <= most:
            raise ValueError(
                f"num_experts_per_tok is {self.num_experts_per_tok}; it must be from 1 to the {most} experts of a "
                "token's groups."
            )

    @classmethod
    def tiny(cls, **changes: object) -> DeepseekConfig:
        """A byte-level model of four narrow layers, eight experts in two groups; ``changes`` replace its fields."""
        latent = {
            "q_lora_rank": 48,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
        }
        routed = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
        defaults = {"first_k_dense_replace": 1, "moe_intermediate_size": 64}
        return super().tiny(**(defaults | latent | routed | changes))


class Gate(nn.Linear):
    """The router's matrix, and for each expert the bias that counts in the choice."""

    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__(hidden, experts, bias=False)
        self.register_buffer("e_score_correction_bias", torch.zeros(experts))


class DeepseekMLP(SparseMLP):
    """Shared experts beside those that are chosen."""

    def __init__(self, config: DeepseekConfig) -> None:
        number, width = config.n_routed_experts, config.moe_intermediate_size
        experts, gate = Experts(number, config.hidden_size, width), Gate(config.hidden_size, number)
        super().__init__(experts, gate, config.capacity_factor)
        self.shared_experts = LlamaMLP(config, config.n_shared_experts * width)
        self.k, self.groups, self.most_groups = config.num_experts_per_tok, config.n_group, config.topk_group
        self.normed, self.scale = config.norm_topk_prob, config.routed_scaling_factor
        self.speed, self.alpha = config.bias_update_speed, config.balance_loss

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(tokens.dtype, torch.float32)
        p = nn.functional.linear(tokens.to(wide), self.gate.weight.to(wide)).sigmoid()  # (tokens, experts)
        self.probabilities = p
        score = (p.detach() + self.gate.e_score_correction_bias).unflatten(1, (self.groups, -1))
        best = (
            score.topk(2).values.sum(-1).topk(self.most_groups).indices
        )  # a group counts as its two best experts
        left_out = torch.ones_like(score[..., 0], dtype=torch.bool).scatter(1, best, False)
        chosen = score.masked_fill(left_out[..., None], -torch.inf).flatten(1).topk(self.k).indices
        weights = p.gather(1, chosen)
        if self.normed:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.scale, chosen

    def balance(self, load: Tensor) -> None:
        """No auxiliary loss, but a bias that grows by ``speed`` where less than the mean was sent, and else shrinks."""
        load = load.double()
        self.gate.e_score_correction_bias += self.speed * (load.mean() - load).sign()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.shared_experts(x)


class DeepseekLayer(LlamaLayer):
    def __init__(self, config: DeepseekConfig, dense: bool) -> None:
        attention = LatentAttention(
            config.hidden_size,
            config.num_attention_heads,
            config.qk_nope_head_dim,
            config.kv_lora_rank,
            config.qk_rope_head_dim,
            value_size=config.v_head_dim,
            q_latent=config.q_lora_rank,
            rope_theta=config.rope_theta,
        )
        super().__init__(config, LlamaMLP(config) if dense else DeepseekMLP(config), attention)


class DeepseekModel(DecoderModel):
    def layer(self, config: DeepseekConfig, number: int) -> DeepseekLayer:
        return DeepseekLayer(config, dense=number < config.first_k_dense_replace)


class Deepseek(Decoder):
    """Norms and ends are LLaMA's. Give generation a ``LatentCache``. Without multi-token prediction."""

    kind = DeepseekModel
    config: DeepseekConfig
