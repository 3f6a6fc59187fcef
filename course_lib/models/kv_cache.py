"""The cache of keys and values: a token's keys and values never change, so generation computes them once.

``model(tokens, cache=cache)`` takes the *new* tokens only. The cache is an object of the caller's, and a model asks
it for two things: where the new tokens stand, and what a layer's queries attend to. So another cache, such as one
that keeps its keys in blocks, takes this one's place without a change in the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.models.masks import causal_mask, check_mask, see_itself


class Cache(Protocol):
    """What a model needs from a cache."""

    def extend(self, tokens: Tensor) -> Tensor:
        """Make room for new tokens ``(batch, seq)``, once per forward; return their positions.

        Positions are integers ``(seq,)``, or ``(batch, seq)`` where sequences differ in length.
        """
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Keep the new tokens' keys and values of one layer, and attend to all that it has kept.

        ``q`` and the result ``(batch, heads, seq, size)``, ``k`` and ``v`` ``(batch, kv_heads, seq, size)``, rotated
        already. ``mask`` (``masks.py``), for ``seq`` queries and all keys so far; None: causal.
        """
        ...


def layer_options(
    layers: int, tokens: Tensor, mask: Tensor | None, positions: Tensor | None, cache: Cache | None
) -> Iterator[dict[str, Any]]:
    """For each layer, what its attention gets beside its input. Without mask and cache that is nothing."""
    if mask is not None and cache is None:
        check_mask(mask, tokens.shape[1], tokens.shape[1])
    for layer in range(layers):
        attend = None if cache is None else partial(cache.attend, layer)
        options = {"mask": mask, "positions": positions, "attend": attend}
        yield {name: option for name, option in options.items() if option is not None}


def check_length(tokens: Tensor, positions: Tensor | None, most: int) -> None:
    """Refuse tokens beyond the model's last position; positions on the meta device have no values to look at."""
    if positions is not None and positions.is_meta:
        return
    length = tokens.shape[1] if positions is None else int(positions.max()) + 1
    if length > most:
        raise ValueError(f"the sequence has {length} tokens; this model has {most} positions.")


class KVCache:
    """The contiguous cache: in each layer one tensor of keys and one of values, ``(batch, kv_heads, length, size)``.

    All sequences of the batch grow together. Where prompts differ in length they are padded **on the left**, so that
    all end at the same place.

    Args:
        length: tokens that each sequence has room for; the memory is taken at the first forward.
        padding: ``(batch,)``, how many padding tokens stand before each prompt. None: none.
    """

    def __init__(self, length: int, padding: Tensor | None = None) -> None:
        if length < 1:
            raise ValueError(f"length is {length}; a cache has room for at least 1 token.")
        self.length, self.padding = length, padding
        self.start = self.filled = 0  # the new tokens stand from start to filled
        self.layers: dict[int, tuple[Tensor, ...]] = {}

    def extend(self, tokens: Tensor) -> Tensor:
        seq = tokens.shape[1]
        if seq < 1:
            raise ValueError("there are no new tokens; a forward with a cache needs at least 1.")
        if self.filled + seq > self.length:
            raise ValueError(
                f"the cache has room for {self.length} tokens and holds {self.filled}: {seq} more do not fit."
            )
        self.start, self.filled = self.filled, self.filled + seq
        positions = torch.arange(self.start, self.filled, device=tokens.device)
        if self.padding is None:
            return positions  # (seq,)
        return (positions - self.padding.to(tokens.device)[:, None]).clamp(min=0)  # (batch, seq)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        if k.requires_grad:
            raise ValueError("a cache keeps no graph for backward: call the model under torch.no_grad().")
        keys, values = self.keep(layer, k, v)
        if mask is None:
            mask = self._mask(q)
        else:
            check_mask(mask, q.shape[2], self.filled)
        return F.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, enable_gqa=q.shape[1] != keys.shape[1]
        )

    def keep(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new tokens' keys and values, and return all: ``(batch, kv_heads, filled, size)``."""
        keys, values = self._append(layer, k, v)
        return keys, values

    def _append(self, layer: int, *new: Tensor) -> list[Tensor]:
        if layer not in self.layers:
            shapes = [(*x.shape[:2], self.length, x.shape[3]) for x in new]
            self.layers[layer] = tuple(x.new_zeros(shape) for x, shape in zip(new, shapes, strict=True))
        for kept, x in zip(self.layers[layer], new, strict=True):
            if len(kept) != len(x):
                raise ValueError(f"the cache holds {len(kept)} sequences, and {len(x)} came.")
            kept[:, :, self.start : self.filled] = x
        return [kept[:, :, : self.filled] for kept in self.layers[layer]]

    def _mask(self, q: Tensor) -> Tensor | None:
        """Causal, and nobody sees padding. A single token sees all that the cache holds."""
        seq = q.shape[2]
        if self.padding is None:
            return None if seq == 1 else causal_mask(seq, self.filled, q.device)
        real = torch.arange(self.filled, device=q.device) >= self.padding.to(q.device)[:, None]
        return see_itself(causal_mask(seq, self.filled, q.device) & real[:, None, None, :])

    @property
    def bytes(self) -> int:
        """Memory taken for keys and values, used or not."""
        return sum(x.nbytes for tensors in self.layers.values() for x in tensors)


class LatentCache(KVCache):
    """For attention whose values are the first entries of its keys (``latent_attention.py``): keeps the keys alone."""

    def keep(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        [keys] = self._append(layer, k)
        return keys, keys[..., : v.shape[-1]]
