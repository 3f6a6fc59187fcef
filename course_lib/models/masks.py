"""Which token may attend to which: boolean masks, true where a query may look at a key.

Each broadcasts to ``(batch, heads, queries, keys)``, so masks are joined with ``&`` and ``|``, and
``scaled_dot_product_attention`` takes them as they are. Queries are the last of the keys: where fewer queries than
keys are given, the keys before them come from a cache.
"""

from __future__ import annotations

import torch
from torch import Tensor


def causal_mask(queries: int, keys: int | None = None, device: torch.device | str | None = None) -> Tensor:
    """A token sees itself and all before it: ``(queries, keys)``, a lower triangle that ends in the last corner."""
    keys = queries if keys is None else keys
    if not 0 <= queries <= keys:
        raise ValueError(
            f"{queries} queries and {keys} keys: the queries are the last keys, so at most {keys}."
        )
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def padding_mask(real: Tensor) -> Tensor:
    """Nobody sees padding: ``real`` ``(batch, keys)`` is 1 or true for a token; the result ``(batch, 1, 1, keys)``."""
    if real.dim() != 2:
        raise ValueError(f"real has the shape {tuple(real.shape)}; it must be (batch, keys).")
    return real[:, None, None, :].bool()


def prefix_mask(
    prefix: Tensor | int, queries: int, keys: int | None = None, device: torch.device | str | None = None
) -> Tensor:
    """All tokens of the prefix see each other, the tokens after it are causal (GLM, arXiv:2103.10360).

    ``prefix``: its length, one number or one per sequence ``(batch,)``. Result: ``(batch or 1, 1, queries, keys)``.
    """
    keys = queries if keys is None else keys
    prefix = torch.as_tensor(prefix, device=device)
    if prefix.dim() > 1 or prefix.is_floating_point() or (prefix < 0).any() or (prefix > keys).any():
        raise ValueError(f"prefix is {prefix.tolist()}; give one or several lengths from 0 to {keys}.")
    inside = torch.arange(keys, device=prefix.device) < prefix.reshape(-1, 1, 1, 1)
    return inside | causal_mask(queries, keys, prefix.device)


def check_mask(mask: Tensor, queries: int, keys: int) -> None:
    """Refuse a mask that attention could not use, or would broadcast in another way than its author meant."""
    shape = (1, *mask.shape) if mask.dim() == 3 else mask.shape  # heads come first where there is no batch
    fits = (
        len(shape) in (2, 4)
        and shape[-1] == keys
        and shape[-2] in ((queries,) if len(shape) == 2 else (1, queries))
    )
    if not fits or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ValueError(
            f"the mask has the shape {tuple(mask.shape)} and the dtype {mask.dtype}; it must be boolean (or floats, "
            f"added to the scores) and ({queries}, {keys}), or with batch and heads before that."
        )


def see_itself(mask: Tensor) -> Tensor:
    """``mask``, with every token seeing itself at least.

    A query that sees nothing (padding on the left of a causal mask) has a softmax over no key, which is not a number.
    """
    queries, keys = mask.shape[-2:]
    itself = torch.ones(queries, keys, dtype=torch.bool, device=mask.device)
    return mask | itself.tril(keys - queries).triu(keys - queries)
