"""Likely mistakes of exercises 05.3 to 05.6, as programs, each beside the right result that it departs from.

The programs run in the check's own process, on what every rank computed by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

Ranks = Sequence[Tensor]

# ---- 05.3 unequal parts: `sums` hold each rank's gradient of its summed loss, `tied` marks the tied tensor's part --


def whole_batch(sums: Ranks, sizes: Sequence[int], tied: Tensor) -> list[Tensor]:
    return [sum(sums) / sum(sizes)] * len(sums)


def _means(sums: Ranks, sizes: Sequence[int]) -> list[Tensor]:
    """The gradient of each rank's mean loss; autograd gives zeros for no samples, although the loss is nan."""
    return [g / n if n else torch.zeros_like(g) for g, n in zip(sums, sizes, strict=True)]


WHOLE_BATCH: dict[str, Callable[[Ranks, Sequence[int], Tensor], list[Tensor]]] = {
    "when the ranks' mean gradients are averaged, so that parts of different sizes count the same": (
        lambda sums, sizes, tied: [sum(_means(sums, sizes)) / len(sums)] * len(sums)
    ),
    "when the ranks' mean gradients are added up": lambda sums, sizes, tied: (
        [sum(_means(sums, sizes))] * len(sums)
    ),
    "when the sum is not divided by the number of samples": lambda sums, sizes, tied: [sum(sums)] * len(sums),
    "when the sum over the whole batch is divided by the number of ranks once more": lambda sums, sizes, tied: (
        [sum(sums) / sum(sizes) / len(sums)] * len(sums)
    ),
    "when the sum is divided by the number of this rank's samples": lambda sums, sizes, tied: [
        sum(sums) / n if n else sum(sums) / 0.0 for n in sizes
    ],
    "when each rank keeps the gradient of its own mean loss": lambda sums, sizes, tied: _means(sums, sizes),
    "when the tied tensor is reduced under both of its names": lambda sums, sizes, tied: (
        [torch.where(tied, len(sums), 1) * sum(sums) / sum(sizes)] * len(sums)
    ),
    "when the tied tensor is divided under both of its names": lambda sums, sizes, tied: (
        [sum(sums) / sum(sizes) / torch.where(tied, sum(sizes), 1)] * len(sums)
    ),
}

# ---- 05.4 accumulation: `means` hold, by rank, the gradient of each microbatch's mean loss ---------------------

Means = Sequence[Sequence[Tensor]]
Sizes = Sequence[Sequence[int]]


def _over_ranks(each: Sequence[Tensor]) -> list[Tensor]:
    return [sum(each) / len(each)] * len(each)


def _own(means: Means, sizes: Sizes) -> list[Tensor]:
    return [
        sum(n * g for n, g in zip(counts, own, strict=True)) / sum(counts)
        for counts, own in zip(sizes, means, strict=True)
    ]


def accumulated(means: Means, sizes: Sizes) -> list[Tensor]:
    return _over_ranks(_own(means, sizes))


def _first_averaged(means: Means, sizes: Sizes) -> list[Tensor]:
    first = [own[0] * counts[0] / sum(counts) for own, counts in zip(means, sizes, strict=True)]
    return [
        sum(first) / len(first) + whole - mine for whole, mine in zip(_own(means, sizes), first, strict=True)
    ]


ACCUMULATED: dict[str, Callable[[Means, Sizes], list[Tensor]]] = {
    "when the losses of the microbatches are added up and not averaged": lambda means, sizes: _over_ranks(
        [sum(own) for own in means]
    ),
    "when microbatches of different sizes count the same": lambda means, sizes: _over_ranks(
        [sum(own) / len(own) for own in means]
    ),
    "when the last microbatch is not synchronised, too: each rank keeps its own gradients": _own,
    "when only the first microbatch is averaged over the ranks": _first_averaged,
    "when only the last microbatch is left": lambda means, sizes: _over_ranks(
        [own[-1] * counts[-1] / sum(counts) for own, counts in zip(means, sizes, strict=True)]
    ),
    "when the averages are divided by the number of ranks once more": lambda means, sizes: [
        g / len(means) for g in accumulated(means, sizes)
    ],
}

# ---- 05.5 statistics: `parts` hold each rank's images --------------------------------------------------------

OVER = (0, 2, 3)
Parts = Sequence[Tensor]


def _mean(x: Tensor) -> Tensor:
    return x.mean(OVER)


def _variance(x: Tensor) -> Tensor:
    return x.var(OVER, correction=0)


def statistics(parts: Parts, which: int) -> list[Tensor]:
    whole = torch.cat([part.double() for part in parts])
    return [(_mean, _variance)[which](whole)] * len(parts)


def _averaged(of: Callable[[Tensor], Tensor], parts: Parts) -> list[Tensor]:
    return _over_ranks([of(part.double()) for part in parts])


def _own_count(parts: Parts) -> list[Tensor]:
    total = sum(part.double().sum(OVER) for part in parts)
    return [total / (part.numel() / part.shape[1]) for part in parts]


def _images_only(parts: Parts) -> list[Tensor]:
    total = sum(part.double().sum(OVER) for part in parts)
    return [total / sum(len(part) for part in parts)] * len(parts)


def unbiased(parts: Parts) -> list[Tensor]:
    n = torch.tensor(sum(part.numel() / part.shape[1] for part in parts))
    return [variance * n / (n - 1) for variance in statistics(parts, 1)]


def _alone(of: Callable[[Tensor], Tensor], parts: Parts) -> list[Tensor]:
    return [of(part.double()) for part in parts]


def _around_own_means(parts: Parts) -> list[Tensor]:
    count = sum(part.numel() / part.shape[1] for part in parts)
    squares = sum(
        (p - p.mean(OVER, keepdim=True)).square().sum(OVER) for p in (part.double() for part in parts)
    )
    return [squares / count] * len(parts)


def _nan_where(lacks_images: Callable[[Parts], bool], which: int, parts: Parts) -> list[Tensor]:
    right = statistics(parts, which)
    return [torch.full_like(t, torch.nan) for t in right] if lacks_images(parts) else right


def _some_rank(parts: Parts) -> bool:
    return any(len(part) == 0 for part in parts)


def _rank_0(parts: Parts) -> bool:
    return len(parts[0]) == 0


NO_IMAGES = "when the mean of a rank without images, which is NaN, enters the sums"
NO_IMAGES_ON_0 = "when all ranks use a mean of rank 0, which is NaN where rank 0 has no images"

STATISTICS: dict[str, dict[str, Callable[[Parts], list[Tensor]]]] = {
    "mean": {
        "when the means of the ranks are averaged, so that different numbers of images count the same": partial(
            _averaged, _mean
        ),
        "when the sum over all ranks is divided by the number of this rank's values": _own_count,
        "when the sum is divided by the number of images, and not by the number of their values": _images_only,
        "when each rank returns the mean of its own images": partial(_alone, _mean),
        NO_IMAGES: partial(_nan_where, _some_rank, 0),
        NO_IMAGES_ON_0: partial(_nan_where, _rank_0, 0),
    },
    "variance": {
        "when the variances of the ranks are averaged": partial(_averaged, _variance),
        "when the ranks' squares are taken around their own means, and not around the mean of all": _around_own_means,
        "when the squares are divided by n - 1": unbiased,
        "when each rank returns the variance of its own images": partial(_alone, _variance),
        NO_IMAGES: partial(_nan_where, _some_rank, 1),
        NO_IMAGES_ON_0: partial(_nan_where, _rank_0, 1),
    },
}


def cancelled(variances: Sequence[Tensor]) -> list[Tensor]:
    """What is left of float32 numbers around a million, subtracted: a multiple of their spacing, 1/16."""
    return [(16 * v.double()).round() / 16 for v in variances]


# ---- 05.6 the loss that a step returns -----------------------------------------------------------------------

LOSSES: dict[str, Callable[[Sequence[float]], list[float]]] = {
    "when each rank returns the loss of its own part": list,
    "when the losses of the ranks are added up and not averaged": lambda losses: [sum(losses)] * len(losses),
    "when every rank returns the loss of rank 0's part": lambda losses: [losses[0]] * len(losses),
}
