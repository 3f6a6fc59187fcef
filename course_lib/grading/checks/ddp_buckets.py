"""The check of exercise 05.1: which tensors share a bucket."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.checks import ddp_mistakes as mistakes
from course_lib.grading.report import Report


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
        "a tied parameter": ([tied, *trained(5, 7), tied, *trained(4)], 100),
        "a frozen parameter": ([*trained(5, 7), frozen, *trained(8)], 100),
        "float32 and bfloat16": ([single[0], half[0], single[1], half[1], single[2]], 100),
        "views of one tensor": ([*views, *trained(5, 7)], 200),
        "tensors on the meta device": (meta, 60),
        "40 parameters at random": (trained(*drawn), 2000),
        "no parameters": ([], 100),
    }


def check_buckets(report: Report, got: Any, parameters: list[Tensor], limit: int) -> None:
    lists = isinstance(got, list | tuple) and all(isinstance(b, list | tuple) and len(b) for b in got)
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
        "mistakes": mistakes.BUCKETS,
        "given": (parameters, limit),
    }
    dealt = sorted(place for bucket in places for place in bucket)
    trained = sorted({known[id(p)] for p in parameters if p.requires_grad})
    report.true(
        dealt == trained,
        "every trained tensor is in one bucket, once",
        f"{len(dealt)} tensors are dealt out, of which {len(set(dealt))} are different; "
        f"{len(trained)} of the list are trained",
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
    complete = mistakes.completion_order(parameters)
    for dtype in {p.dtype for p in parameters}:
        order = [complete[id(t)] for bucket in got for t in bucket if t.dtype == dtype]
        report.true(
            order == sorted(order),
            f"{str(dtype).removeprefix('torch.')} tensors in the order of their gradients",
            f"tensors of {str(dtype).removeprefix('torch.')} are dealt out in another order",
            task="in the order in which backward completes their gradients",
            **facts,
        )
    largest = max((sum(map(mistakes.size_of, bucket)) for bucket in got if len(bucket) > 1), default=0)
    report.true(
        largest <= limit,
        "no bucket of several tensors is larger than the limit",
        f"a bucket of several tensors holds {largest} bytes, and the limit is {limit}",
        task="A bucket of two or more tensors holds at most `limit` bytes",
        **facts,
    )
    fewest = len(mistakes.deal(parameters, limit))
    slow = {
        text: len(got)
        for text, other in mistakes.MANY_BUCKETS.items()
        if other(parameters, limit) == sorted(places)
    }
    report.at_most("buckets", len(got), fewest, mistakes=slow, task="no more buckets than this rule makes")


def _described(got: Any) -> str:
    if isinstance(got, list | tuple):
        return "a list in which not every entry is a list of one tensor or more"
    return "None: nothing was returned" if got is None else f"a {type(got).__name__}"
