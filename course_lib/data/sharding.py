"""Who trains on which sample: shuffled alike everywhere, split by rank without overlap.

Two ways. ``shard_indices`` gives each rank its own part of an epoch, as torch's ``DistributedSampler`` does.
``batches`` splits every *global* batch over the ranks: what they see together at a step is exactly what one device
sees at that step, which is how a parallel run can be compared with the one-device loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import torch
from torch import Tensor

REMAINDERS = ("keep", "drop", "pad")


def split_range(n: int, rank: int, ranks: int) -> range:
    """The ``rank``-th of ``ranks`` contiguous parts of ``range(n)``; the first ``n % ranks`` have one more."""
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; at least 1 is needed.")
    if not 0 <= rank < ranks:
        raise ValueError(f"rank is {rank}; with {ranks} ranks it runs from 0 to {ranks - 1}.")
    size, extra = divmod(n, ranks)
    start = rank * size + min(rank, extra)
    return range(start, start + size + (rank < extra))


def shuffled(n: int, seed: int = 0, epoch: int = 0) -> Tensor:
    """The order of ``n`` samples in an epoch, int64 ``(n,)``: the same on all ranks with the same seed and epoch.

    Seed and epoch are hashed together, so that epoch 1 of seed 0 is not epoch 0 of seed 1.
    """
    return torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(n))


def shard_indices(
    n: int, rank: int, ranks: int, seed: int = 0, epoch: int = 0, *, remainder: str = "keep"
) -> Tensor:
    """The samples of ``rank`` in this epoch, int64; no sample belongs to two ranks.

    Where ``ranks`` does not divide ``n``, ``remainder`` says what happens to the rest:
    ``"keep"`` gives one more to the first ranks: all samples are covered once, but lengths differ by one, and a
    rank with one batch more would wait for the others for ever; ``"drop"`` leaves the last ``n % ranks`` out;
    ``"pad"`` repeats samples from the epoch's beginning (the only case in which ranks share some).
    """
    if remainder not in REMAINDERS:
        raise ValueError(f"remainder is {remainder!r}; choose one of {', '.join(REMAINDERS)}.")
    order = shuffled(n, seed, epoch)
    own = split_range(n, rank, ranks)
    if remainder == "keep":
        return order[own.start : own.stop]
    per_rank = n // ranks if remainder == "drop" else -(-n // ranks)
    return order[torch.arange(rank * per_rank, (rank + 1) * per_rank) % max(n, 1)]


def batches(
    data: Sequence[Tensor],
    batch_size: int,
    *,
    rank: int = 0,
    ranks: int = 1,
    seed: int = 0,
    epochs: int | None = None,
) -> Iterator[tuple[Tensor, ...]]:
    """This rank's slice of each global batch of ``batch_size`` samples; without end unless ``epochs`` is given.

    ``data``: tensors with one length, such as ``(images, labels)``. Each global batch is split into ``ranks``
    contiguous slices, sizes differing by at most one; put together in rank order they are the batch of one device.
    With uneven slices the mean of the ranks' mean losses is not the batch's mean: weigh by slice size.
    An epoch's last, incomplete batch is left out.
    """
    n = len(data[0])
    if any(len(tensor) != n for tensor in data):
        raise ValueError(f"the tensors have lengths {[len(t) for t in data]}; they must be equal.")
    if not ranks <= batch_size <= n:
        raise ValueError(f"batch_size is {batch_size}; it must lie between {ranks} ranks and {n} samples.")
    own = split_range(batch_size, rank, ranks)

    def generate() -> Iterator[tuple[Tensor, ...]]:
        for epoch in count() if epochs is None else range(epochs):
            order = shuffled(n, seed, epoch)
            for first in range(0, n - batch_size + 1, batch_size):
                chosen = order[first + own.start : first + own.stop]
                yield tuple(tensor[chosen] for tensor in data)

    return (
        generate()
    )  # a generator of its own, so that wrong arguments are told at the call, not at the first batch


def batches_of_like_length(
    data: Sequence[Tensor], lengths: Tensor, batch_size: int, *, seed: int = 0, pool: int = 8
) -> Iterator[tuple[Tensor, ...]]:
    """Batches without end in which samples of like length stand together, so that little of them is padding.

    Each epoch is shuffled and cut into pools of ``pool`` batches. A pool is sorted by length and cut into batches,
    and the epoch's batches are shuffled, so short and long ones take turns. The rest of an epoch, too few samples
    for a batch, is left out.

    Args:
        data: tensors with one length ``n``, such as ``(tokens, mask, labels)``.
        lengths: of each sample, ``(n,)``.
    """
    n = len(lengths)
    if any(len(tensor) != n for tensor in data):
        raise ValueError(
            f"the tensors have lengths {[len(t) for t in data]}; they must be {n}, as many as lengths."
        )
    if not 1 <= batch_size <= n:
        raise ValueError(f"batch_size is {batch_size}; it must lie between 1 and {n} samples.")
    if pool < 1:
        raise ValueError(f"pool is {pool}; at least 1 batch is needed.")

    def generate() -> Iterator[tuple[Tensor, ...]]:
        for epoch in count():
            order = shuffled(n, seed, epoch)[: n - n % batch_size]
            pools = [chosen[lengths[chosen].argsort()] for chosen in order.split(pool * batch_size)]
            cut = [chosen for sorted_ in pools for chosen in sorted_.split(batch_size)]
            for i in np.random.default_rng([seed, epoch, 1]).permutation(len(cut)):
                yield tuple(tensor[cut[i]] for tensor in data)

    return generate()
