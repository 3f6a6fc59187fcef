"""Flat, sharded state for another number of ranks; ``parallelize``'s checkpoints load under any other plan."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def reshard_flat(shards: Sequence[Tensor], numel: int, ranks: int) -> list[Tensor]:
    """Equal, padded shards of ``numel`` elements to those of another number of ranks.

    ``shards`` are (ceil(numel / p),) each; the result has ``ranks`` tensors of (ceil(numel / ranks),). Where there are
    fewer elements than places, the end is padded with zeros.
    """
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; at least 1 is needed")
    size, old = -(-numel // ranks), -(-numel // len(shards))
    if any(len(shard) != old for shard in shards):
        raise ValueError(
            f"{len(shards)} shards of {numel} elements have {old} each, not {[len(shard) for shard in shards]}"
        )
    new = []
    for rank in range(ranks):
        start, own = rank * size, shards[0].new_zeros(size)
        for other, shard in enumerate(shards):
            low, high = max(start, other * old), min(start + size, other * old + old, numel)
            if low < high:
                own[low - start : high - start] = shard[low - other * old : high - other * old]
        new.append(own)
    return new
