"""Multi-head latent attention (MLA) of DeepSeek-V2 (arXiv:2405.04434, section 2.1), with DeepSeek's parameter names.

All heads' keys and values are made from one small vector per token, the latent, so the cache holds the latent instead.
RoPE turns one more small key, which all heads share. It cannot turn the keys that are made from the latent: the cached
form below multiplies queries by the matrix that makes those keys, and a turn that depends on the position would stand
between the two.

Shapes in comments: ``batch``, ``seq``, ``hidden``, ``heads``, ``size`` (of one head), ``latent``, ``rope``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor, nn

from course_lib.models.llama import LlamaCore
from course_lib.models.norms import RMSNorm
from course_lib.models.positions import RotaryPositions


class LatentAttention(nn.Module):
    """Self-attention that can stand as ``self_attn`` in a layer of Llama. Give generation a ``LatentCache``.

    Args:
        latent: width of the latent (DeepSeek-V2: 512).
        rope_size: width of the rotated part of queries and keys (DeepSeek-V2: 64).
        head_size: width of the other part (DeepSeek-V2: 128).
        value_size: width of the values; None: as ``head_size``.
        q_latent: queries are made from so many numbers (DeepSeek-V3: 1536); None: from all.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        head_size: int,
        latent: int,
        rope_size: int,
        *,
        value_size: int | None = None,
        q_latent: int | None = None,
        rope_theta: float = 10000.0,
        rms_norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        for name, value in {"heads": heads, "head_size": head_size, "latent": latent}.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; at least 1 is needed.")
        if rope_size < 2:
            raise ValueError(f"rope_size is {rope_size}; RoPE turns pairs, so at least 2 are needed.")
        self.heads, self.size, self.latent, self.rope_size = heads, head_size, latent, rope_size
        self.value_size = head_size if value_size is None else value_size
        if q_latent is None:
            self.q_proj = nn.Linear(hidden_size, heads * (head_size + rope_size), bias=False)
        else:
            self.q_a_proj = nn.Linear(hidden_size, q_latent, bias=False)
            self.q_a_layernorm = RMSNorm(q_latent, rms_norm_eps)
            self.q_b_proj = nn.Linear(q_latent, heads * (head_size + rope_size), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden_size, latent + rope_size, bias=False)
        self.kv_a_layernorm = RMSNorm(latent, rms_norm_eps)
        self.kv_b_proj = nn.Linear(latent, heads * (head_size + self.value_size), bias=False)
        self.o_proj = nn.Linear(heads * self.value_size, hidden_size, bias=False)
        self.rotary = RotaryPositions(rope_size, rope_theta, interleaved=True)
        self.core = LlamaCore()

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        attend: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """``positions`` and ``attend`` are a cache's: where the tokens stand, and what takes the core's place."""
        q = self.q_proj(x) if hasattr(self, "q_proj") else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, q_rope = q.split((self.size, self.rope_size), dim=-1)  # (batch, heads, seq, size), (…, rope)
        latent, k_rope = self.kv_a_proj_with_mqa(x)[:, None].split((self.latent, self.rope_size), dim=-1)
        latent = self.kv_a_layernorm(latent)  # (batch, 1, seq, latent)
        q_rope, k_rope = self.rotary(q_rope, k_rope, positions=positions)
        weights = self.kv_b_proj.weight.unflatten(0, (self.heads, -1))
        to_key, to_value = weights.split((self.size, self.value_size), dim=1)
        masks = () if mask is None else (mask,)
        if attend is None:
            # In training each head gets keys and values of its own: k = to_key latent, v = to_value latent.
            k, v = latent @ to_key.mT, latent @ to_value.mT  # (batch, heads, seq, size)
            k = torch.cat((k, k_rope.expand(-1, self.heads, -1, -1)), dim=-1)
            attended = self.core(torch.cat((q, q_rope), dim=-1), k, v, *masks)
        else:
            # With a cache q · (to_key latent) = (q to_key) · latent: queries go to the latents, one for all heads.
            q = torch.cat((q @ to_key, q_rope), dim=-1)  # (batch, heads, seq, latent + rope)
            # Attention divides by the root of the width that it sees; it should be that of a head.
            q = q * sqrt((self.latent + self.rope_size) / (self.size + self.rope_size))
            kept = torch.cat((latent, k_rope), dim=-1)
            attended = attend(q, kept, latent, *masks) @ to_value.mT
        return self.o_proj(attended.transpose(1, 2).flatten(2))  # (batch, seq, hidden)
