"""How attention learns where a token stands, the schemes in the order of their papers.

Sinusoidal (and learned) positions are added to the embeddings. A bias (T5, ALiBi) is added to the scores, so it can be
given to a model as its ``mask``; both biases here are causal. RoPE turns queries and keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from course_lib.models.masks import causal_mask
from course_lib.models.rope_scaling import RopeScaling


def sinusoidal_positions(length: int, hidden_size: int) -> Tensor:
    """sin(m / 10000^(2i/hidden)) in column 2i and cos of the same in column 2i + 1: ``(length, hidden)``.

    A sum of fixed waves (arXiv:1706.03762), added to the embeddings. Learned positions are an ``nn.Embedding`` in its
    place (``gpt.py``): they have no row beyond the length that they were trained for.
    """
    if hidden_size < 2 or hidden_size % 2:
        raise ValueError(
            f"hidden_size is {hidden_size}; sines and cosines come in pairs, so it must be even."
        )
    waves = 10000.0 ** (-torch.arange(0, hidden_size, 2, dtype=torch.float64) / hidden_size)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), waves)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()


class RelativeBias(nn.Module):
    """T5's positions (arXiv:1910.10683): for each head a learned number per distance, added to the scores.

    Distances share ``buckets``: each short distance has its own, longer ones share, on a logarithmic scale up to
    ``max_distance``, and all beyond it share the last.
    """

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__()
        if buckets < 2 or max_distance <= buckets // 2:
            raise ValueError(
                f"{buckets} buckets up to the distance {max_distance}: choose at least 2 buckets, "
                f"and a distance above half of them."
            )
        self.max_distance = max_distance
        self.bias = nn.Embedding(buckets, heads)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of each distance (query minus key, not negative)."""
        buckets = self.bias.num_embeddings
        exact = buckets // 2
        scale = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        shared = exact + (scale * (buckets - exact)).long()
        return torch.where(distance < exact, distance, shared.clamp(max=buckets - 1))

    def forward(self, queries: int, keys: int | None = None) -> Tensor:
        """``(heads, queries, keys)``, minus infinity for keys after the query."""
        distance = _distances(queries, keys, self.bias.weight.device)
        bias = self.bias(self.bucket(distance.clamp(min=0))).permute(2, 0, 1)
        return bias.masked_fill(distance < 0, -math.inf)


def alibi_slopes(heads: int) -> Tensor:
    """One slope per head: 2^(-8/heads), 2^(-16/heads), … down to 2^-8 (arXiv:2108.12409).

    Where ``heads`` is no power of two, the slopes of the next lower one come first, then every second slope of the
    next higher one.
    """
    if heads < 1:
        raise ValueError(f"heads is {heads}; at least 1 is needed.")
    lower = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * i / lower) for i in range(1, lower + 1)]
    between = [2 ** (-8 * i / (2 * lower)) for i in range(1, 2 * lower, 2)]
    return torch.tensor(slopes + between[: heads - lower])


def alibi_bias(
    heads: int, queries: int, keys: int | None = None, device: torch.device | str | None = None
) -> Tensor:
    """-slope · distance: ``(heads, queries, keys)``, minus infinity for keys after the query. Nothing is learned."""
    distance = _distances(queries, keys, device)
    return (-alibi_slopes(heads).to(distance.device)[:, None, None] * distance).masked_fill(
        distance < 0, -math.inf
    )


def _distances(queries: int, keys: int | None, device: torch.device | str | None) -> Tensor:
    """How far each key stands before each query ``(queries, keys)``; the queries are the last of the keys."""
    keys = queries if keys is None else keys
    causal_mask(queries, keys)  # refuses lengths that do not fit
    where = torch.arange(keys, device=device)
    return where[keys - queries :, None] - where


class RotaryPositions(nn.Module):
    """RoPE (arXiv:2104.09864): turn pair i of a query or key at position m by the angle m theta^(-2i/size).

    The product of a turned query and a turned key depends on their distance and not on where they stand.

    Args:
        head_size: entries of one head.
        theta: the base of the angles.
        fraction: which part of each head is turned, its first entries (GLM: half); 0 turns nothing.
        interleaved: pair i is (x_2i, x_2i+1), as in the paper and in GLM; otherwise (x_i, x_{i + size/2}), as in LLaMA.
        scaling: for texts longer than those of pretraining.
    """

    def __init__(
        self,
        head_size: int,
        theta: float,
        fraction: float = 1.0,
        interleaved: bool = False,
        scaling: RopeScaling | None = None,
    ) -> None:
        super().__init__()
        self.scaling = scaling
        self.turned, self.theta, self.interleaved = int(head_size * fraction), theta, interleaved
        if not 0 <= fraction <= 1 or self.turned % 2:
            raise ValueError(
                f"a fraction of {fraction} of {head_size} entries are {self.turned}; RoPE turns pairs, so it needs "
                f"an even number from 0 to {head_size}."
            )

    def forward(self, *heads: Tensor, positions: Tensor | None = None) -> tuple[Tensor, ...]:
        """Each ``(batch, heads, seq, size)``. ``positions`` ``(seq,)`` or ``(batch, seq)``; None: 0, 1, 2, …"""
        seq, device = heads[0].shape[-2], heads[0].device
        if positions is None:
            positions = torch.arange(seq, device=device)
        exponents = torch.arange(0, self.turned, 2, device=device).float() / self.turned
        if self.scaling is None:
            frequencies, amplitude = 1.0 / self.theta**exponents, 1.0
        else:
            frequencies = self.scaling.frequencies(self.theta, exponents, positions)
            amplitude = self.scaling.amplitude
        angles = positions.float()[..., None] * frequencies  # (…, seq, turned / 2)
        if positions.dim() == 2:
            angles = angles[:, None]  # one batch's positions for all its heads
        angles = angles.repeat_interleave(2, -1) if self.interleaved else torch.cat((angles, angles), dim=-1)
        cos, sin = amplitude * angles.cos(), amplitude * angles.sin()
        return tuple(self._turn(x, cos.to(x.dtype), sin.to(x.dtype)) for x in heads)

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x, unturned = x[..., : self.turned], x[..., self.turned :]
        if self.interleaved:
            across = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
        else:
            first, second = x.chunk(2, dim=-1)
            across = torch.cat((-second, first), dim=-1)
        x = x * cos + across * sin
        return torch.cat((x, unturned), dim=-1) if unturned.shape[-1] else x
