"""Likely mistakes of chapter 05, as programs, each beside the right result that it departs from.

The programs run in the check's own process, on what every rank computed by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

# ---- 05.1 buckets: each program gives the buckets as sorted lists of places in the list of parameters ---------


def size_of(t: Tensor) -> int:
    return t.numel() * t.element_size()


def completion_order(parameters: Sequence[Tensor]) -> dict[int, int]:
    """id -> a number that grows in the order in which backward completes the gradients."""
    first = {id(p): place for place, p in reversed(list(enumerate(parameters)))}
    return {key: -place for key, place in first.items()}


def deal(
    parameters: Sequence[Tensor],
    limit: int,
    *,
    forwards: bool = False,
    last_place: bool = False,
    twice: bool = False,
    frozen: bool = False,
    size: Callable[[Tensor], int] = size_of,
    by_dtype: bool = True,
    before: Callable[[int, int, int], bool] = lambda held, new, limit: held + new > limit,
    after: Callable[[int, int], bool] = lambda held, limit: False,
    drop_open: bool = False,
    closed_by_dtype: bool = False,
) -> list[list[int]]:
    """Buckets that hold at most ``limit`` bytes; as it stands it is right, and each argument is one mistake."""
    known = {id(p): place for place, p in enumerate(parameters)}
    order = list(parameters)
    if not twice:
        order = list(dict.fromkeys(reversed(order)))[::-1] if last_place else list(dict.fromkeys(order))
    closed: list[list[Tensor]] = []
    filling: dict[object, list[Tensor]] = {}
    for p in order if forwards else reversed(order):
        if not (p.requires_grad or frozen):
            continue
        kind = p.dtype if by_dtype else None
        if closed_by_dtype:
            closed += [filling.pop(other) for other in list(filling) if other != kind]
        bucket = filling.get(kind, [])
        if bucket and before(sum(map(size, bucket)), size(p), limit):
            closed.append(filling.pop(kind))
        bucket = filling.setdefault(kind, [])
        bucket.append(p)
        if after(sum(map(size, bucket)), limit):
            closed.append(filling.pop(kind))
    if not drop_open:
        closed += filling.values()
    return sorted([known[id(p)] for p in bucket] for bucket in closed)


def _never(held: int, new: int, limit: int) -> bool:
    return False


def _storage(t: Tensor) -> int:
    return t.untyped_storage().nbytes()


BUCKETS = {
    "when the parameters are taken from the first to the last": partial(deal, forwards=True),
    "when a tied tensor is dealt out at the last of its places in the list": partial(deal, last_place=True),
    "when a tied tensor is dealt out once for each of its places": partial(deal, twice=True),
    "when frozen parameters are dealt out, too": partial(deal, frozen=True),
    "when elements are counted, and not bytes": partial(deal, size=Tensor.numel),
    "when dtypes are not kept apart": partial(deal, by_dtype=False),
    "when a bucket is closed after it has reached the limit, as in the chapter": partial(
        deal, before=_never, after=lambda held, limit: held >= limit
    ),
    "when the buckets that are open at the end are left out": partial(deal, drop_open=True),
}
MANY_BUCKETS = {
    "when a bucket that would be exactly full counts as too large": partial(
        deal, before=lambda held, new, limit: held + new >= limit
    ),
    "when the bytes of the storage are counted, of which a tensor may be a view": partial(
        deal, size=_storage
    ),
    "when a tensor of another dtype closes the open bucket": partial(deal, closed_by_dtype=True),
    "when every tensor has a bucket of its own": partial(deal, before=lambda held, new, limit: True),
}

# ---- 05.2 averages: `own` and `before` hold each rank's gradients of this backward pass and of an earlier one -----

Ranks = Sequence[Tensor]


def averages(own: Ranks, before: Ranks) -> list[Tensor]:
    return [(sum(own) + sum(before)) / len(own)] * len(own)


AVERAGES: dict[str, Callable[[Ranks, Ranks], list[Tensor]]] = {
    "when the sum is not divided by the number of ranks": lambda own, before: (
        [sum(own) + sum(before)] * len(own)
    ),
    "when it is divided by the number of ranks twice": lambda own, before: (
        [(sum(own) + sum(before)) / len(own) ** 2] * len(own)
    ),
    "when the averages are not put into `.grad`: each rank keeps its own gradients": lambda own, before: [
        a + b for a, b in zip(own, before, strict=True)
    ],
    "when each rank divides its own gradients and does not add the others'": lambda own, before: [
        (a + b) / len(own) for a, b in zip(own, before, strict=True)
    ],
    "when the gradients of an earlier backward pass are lost": lambda own, before: (
        [sum(own) / len(own)] * len(own)
    ),
}

# ---- 05.3 unequal parts: `sums` hold each rank's gradient of its summed loss, `tied` marks the tied tensor's part --


def whole_batch(sums: Ranks, sizes: Sequence[int], tied: Tensor) -> list[Tensor]:
    return [sum(sums) / sum(sizes)] * len(sums)


def _means(sums: Ranks, sizes: Sequence[int]) -> list[Tensor]:
    """The gradient of each rank's mean loss; of no samples it is nan."""
    return [g / n if n else torch.full_like(g, torch.nan) for g, n in zip(sums, sizes, strict=True)]


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


ACCUMULATED: dict[str, Callable[[Means, Sizes], list[Tensor]]] = {
    "when the losses of the microbatches are added up and not averaged": lambda means, sizes: _over_ranks(
        [sum(own) for own in means]
    ),
    "when microbatches of different sizes count the same": lambda means, sizes: _over_ranks(
        [sum(own) / len(own) for own in means]
    ),
    "when the last microbatch is not synchronised, too: each rank keeps its own gradients": _own,
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


def _unbiased(parts: Parts) -> list[Tensor]:
    return [torch.cat([part.double() for part in parts]).var(OVER)] * len(parts)


def _alone(of: Callable[[Tensor], Tensor], parts: Parts) -> list[Tensor]:
    return [of(part.double()) for part in parts]


def _around_own_means(parts: Parts) -> list[Tensor]:
    count = sum(part.numel() / part.shape[1] for part in parts)
    squares = sum(
        (p - p.mean(OVER, keepdim=True)).square().sum(OVER) for p in (part.double() for part in parts)
    )
    return [squares / count] * len(parts)


STATISTICS: dict[str, dict[str, Callable[[Parts], list[Tensor]]]] = {
    "mean": {
        "when the means of the ranks are averaged, so that different numbers of images count the same": partial(
            _averaged, _mean
        ),
        "when the sum over all ranks is divided by the number of this rank's values": _own_count,
        "when each rank returns the mean of its own images": partial(_alone, _mean),
    },
    "variance": {
        "when the variances of the ranks are averaged": partial(_averaged, _variance),
        "when the ranks' squares are taken around their own means, and not around the mean of all": _around_own_means,
        "when the squares are divided by n - 1": _unbiased,
        "when each rank returns the variance of its own images": partial(_alone, _variance),
    },
}

# ---- 05.6 the loss that a step returns -----------------------------------------------------------------------

LOSSES: dict[str, Callable[[Sequence[float]], list[float]]] = {
    "when each rank returns the loss of its own part": list,
    "when the losses of the ranks are added up and not averaged": lambda losses: [sum(losses)] * len(losses),
}
