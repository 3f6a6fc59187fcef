"""Norms, and where a layer puts them: before, after, or after with a scaled residual."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight (arXiv:1910.07467), computed in at least fp32."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class PreNorm(nn.Module):
    """x + f(norm(x)) (arXiv:2002.04745): the sum itself is never normalised, so gradients reach every layer."""

    def __init__(self, sublayer: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.sublayer, self.norm = sublayer, norm

    def forward(self, x: Tensor) -> Tensor:
        return x + self.sublayer(self.norm(x))


class PostNorm(nn.Module):
    """norm(alpha x + f(x)): with alpha 1 as in the first transformer and in BERT (arXiv:1706.03762).

    DeepNorm (arXiv:2203.00555) weighs the residual more, by an alpha above 1, and starts the sublayers smaller, by
    beta; ``deepnorm_constants`` has both, and ``scale_initial`` applies beta.
    """

    def __init__(self, sublayer: nn.Module, norm: nn.Module, alpha: float = 1.0) -> None:
        super().__init__()
        self.sublayer, self.norm, self.alpha = sublayer, norm, alpha

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.alpha * x + self.sublayer(x))


def deepnorm_constants(layers: int) -> tuple[float, float]:
    """alpha = (2 layers)^(1/4) and beta = (8 layers)^(-1/4), for a decoder or an encoder of this many layers."""
    if layers < 1:
        raise ValueError(f"layers is {layers}; at least 1 is needed.")
    return (2 * layers) ** 0.25, (8 * layers) ** -0.25


@torch.no_grad()
def scale_initial(weights: Iterable[Tensor], beta: float) -> None:
    """Multiply initial weights by ``beta``: DeepNorm does so for the MLP, the values and the output of attention."""
    for weight in weights:
        weight.mul_(beta)
