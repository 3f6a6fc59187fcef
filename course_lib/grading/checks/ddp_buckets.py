"""The check of exercise 05.1: which tensors share a bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.report import Report

# ---- likely mistakes: each program gives the buckets as sorted lists of places in the list of parameters ---------


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
    same: Callable[[Tensor], int] = id,
    frozen: bool = False,
    size: Callable[[Tensor], int] = size_of,
    by_dtype: bool = True,
    before: Callable[[int, int, int], bool] = lambda held, new, limit: held + new > limit,
    after: Callable[[int, int], bool] = lambda held, limit: False,
    drop_open: bool = False,
    closed_by_dtype: bool = False,
    forgotten: bool = False,
    large_apart: bool = False,
) -> list[list[int]]:
    """Buckets that hold at most ``limit`` bytes; as it stands it is right, and each argument is one mistake."""
    known = {id(p): place for place, p in enumerate(parameters)}
    order = list(parameters)
    if not twice:
        first: dict[int, Tensor] = {}
        for p in order[::-1] if last_place else order:
            first.setdefault(same(p), p)
        order = list(first.values())[:: -1 if last_place else 1]
    closed: list[list[Tensor]] = []
    filling: dict[object, list[Tensor]] = {}
    reopened: set[object] = set()  # kinds of which a bucket has been closed
    for p in order if forwards else reversed(order):
        if not (p.requires_grad or frozen):
            continue
        kind = p.dtype if by_dtype else None
        if closed_by_dtype:
            closed += [filling.pop(other) for other in list(filling) if other != kind]
        if large_apart and size(p) > limit:
            closed.append([p])
            continue
        bucket = filling.get(kind, [])
        counted = bucket[1:] if forgotten and kind in reopened else bucket
        if bucket and before(sum(map(size, counted)), size(p), limit):
            closed.append(filling.pop(kind))
            reopened.add(kind)
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


def _four_bytes(t: Tensor) -> int:
    return 4 * t.numel()


BUCKETS = {
    "when the parameters are taken from the first to the last": partial(deal, forwards=True),
    "when a tied tensor is dealt out at the last of its places in the list": partial(deal, last_place=True),
    "when a tied tensor is dealt out once for each of its places": partial(deal, twice=True),
    "when frozen parameters are dealt out, too": partial(deal, frozen=True),
    "when tensors with the same address (`data_ptr()`) count as one tensor": partial(
        deal, same=Tensor.data_ptr
    ),
    "when elements are counted, and not bytes": partial(deal, size=Tensor.numel),
    "when every element counts as 4 bytes, whatever its dtype": partial(deal, size=_four_bytes),
    "when dtypes are not kept apart": partial(deal, by_dtype=False),
    "when a bucket is closed after it has reached the limit, as in the chapter": partial(
        deal, before=_never, after=lambda held, limit: held >= limit
    ),
    "when the tensor that opens a new bucket is not counted in it": partial(deal, forgotten=True),
    "when a tensor larger than the limit is put beside the open bucket, which stays open": partial(
        deal, large_apart=True
    ),
    "when the buckets that are open at the end are left out": partial(deal, drop_open=True),
}
MANY_BUCKETS = {
    "when a bucket that would be exactly full counts as too large": partial(
        deal, before=lambda held, new, limit: held + new >= limit
    ),
    "when every element counts as 4 bytes, whatever its dtype": partial(deal, size=_four_bytes),
    "when the bytes of the storage are counted, of which a tensor may be a view": partial(
        deal, size=_storage
    ),
    "when a tensor of another dtype closes the open bucket": partial(deal, closed_by_dtype=True),
    "when every tensor has a bucket of its own": partial(deal, before=lambda held, new, limit: True),
}

# ---- the check ------------------------------------------------------------------------------------------------


def bucket_cases() -> dict[str, tuple[list[Tensor], int]]:
    def trained(*sizes: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        return [nn.Parameter(torch.zeros(n, dtype=dtype)) for n in sizes]

    tied, half = trained(16)[0], trained(30, 12, dtype=torch.bfloat16)
    frozen = nn.Parameter(torch.zeros(50), requires_grad=False)
    views = [t.requires_grad_() for t in torch.zeros(100).split([10, 20, 70])]
    meta = [nn.Parameter(torch.empty(n, 2, device="meta")) for n in (3, 9, 5, 2)]
    single = trained(9, 4, 3)
    drawn = torch.randint(1, 200, (40,), generator=torch.Generator().manual_seed(5)).tolist()
    return {
        "6 parameters, 400 bytes": (trained(20, 60, 30, 10, 50, 40), 400),
        "buckets that are exactly full": (trained(10, 15, 5, 20, 25), 100),
        "one tensor larger than the limit": (trained(5, 300, 5, 5), 100),
        "tensors larger than the limit come first": (trained(5, 5, 300, 200), 100),
        "a tied parameter": ([tied, *trained(5, 7), tied, *trained(4)], 100),
        "a frozen parameter": ([*trained(5, 7), frozen, *trained(8)], 100),
        "float32 and bfloat16": ([single[0], half[0], single[1], half[1], single[2]], 100),
        "float64": (trained(10, 10, 10, 3, dtype=torch.float64), 100),
        "views of one tensor": ([*views, *trained(5, 7)], 200),
        "tensors on the meta device": (meta, 60),
        "40 parameters at random": (trained(*drawn), 2000),
        "no parameters": ([], 100),
    }


def check_buckets(report: Report, got: Any, parameters: list[Tensor], limit: int) -> None:
    lists = isinstance(got, list | tuple) and all(isinstance(b, list | tuple) for b in got)
    if lists and (empty := [place for place, bucket in enumerate(got) if not len(bucket)]):
        report.fail(
            f"bucket {empty[0]} of the {len(got)} buckets is empty",
            "a bucket is closed, or returned, before a tensor is in it",
            task="Return a list of buckets, each a list of one tensor or more",
        )
    if not lists:
        report.fail(
            f"the answer is {_described(got)}",
            task="Return a list of buckets, each a list of one tensor or more",
        )
    known = {id(p): place for place, p in enumerate(parameters)}  # of a tied parameter the last of its places
    places = [[known.get(id(tensor), -1) for tensor in bucket] for bucket in got]
    if any(-1 in bucket for bucket in places):
        report.fail(
            "a bucket holds a tensor that is not in the list", task="the tensors themselves, no copies"
        )
    facts = {
        "got": sorted(places),
        "mistakes": BUCKETS,
        "given": (parameters, limit),
    }
    dealt = sorted(place for bucket in places for place in bucket)
    trained = sorted({known[id(p)] for p in parameters if p.requires_grad})
    report.true(
        dealt == trained,
        "every trained tensor is in one bucket, once",
        f"tensors dealt out: {len(dealt)}, different ones: {len(set(dealt))}, to deal out: {len(trained)}",
        task="Every tensor that requires a gradient is in exactly one bucket",
        **facts,
    )
    report.true(
        all(len({tensor.dtype for tensor in bucket}) == 1 for bucket in got),
        "one dtype in a bucket",
        "a bucket holds tensors of two dtypes",
        task="All tensors of a bucket have the same dtype",
        **facts,
    )
    complete = completion_order(parameters)
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        order = [complete[id(t)] for bucket in got for t in bucket if t.dtype == dtype]
        report.true(
            order == sorted(order),
            f"{str(dtype).removeprefix('torch.')} tensors in the order of their gradients",
            f"tensors of {str(dtype).removeprefix('torch.')} are dealt out in another order",
            task="in the order in which backward completes their gradients",
            **facts,
        )
    largest = max((sum(map(size_of, bucket)) for bucket in got if len(bucket) > 1), default=0)
    report.true(
        largest <= limit,
        "no bucket of several tensors is larger than the limit",
        f"a bucket of several tensors holds {largest} bytes, and the limit is {limit}",
        task="A bucket of two or more tensors holds at most `limit` bytes",
        **facts,
    )
    fewest = len(deal(parameters, limit))
    slow = {  # -1: another dealing, so that a mistake which explains one case only is not named
        text: len(got) if other(parameters, limit) == sorted(places) else -1
        for text, other in MANY_BUCKETS.items()
    }
    report.at_most("buckets", len(got), fewest, mistakes=slow, task="no more buckets than this rule makes")


def _described(got: Any) -> str:
    if isinstance(got, list | tuple):
        return "a list in which not every entry is a list"
    return "None: nothing was returned" if got is None else f"a {type(got).__name__}"
