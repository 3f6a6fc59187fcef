"""05.1: which tensors share a bucket; a place is the last one of a tensor in the list of parameters."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from course_lib.grading.judge import Fact, record

FACTS = {
    "lists": Fact("the answer", "Return a list of buckets, each a list of one tensor or more"),
    "tensors": Fact("the tensors", "the tensors themselves, no copies"),
    "once": Fact("the tensors", "Every tensor that requires a gradient is in exactly one bucket."),
    "dtypes": Fact("the dtypes", "All tensors of a bucket have the same dtype."),
    "order": Fact("the order", "The tensors of one dtype are dealt out in the order in which backward…"),
    "limit": Fact("the bytes", "A bucket of two or more tensors holds at most `limit` bytes"),
    "kept": Fact("the list `parameters`", "The list `parameters` stays as it is."),
    "buckets": Fact("buckets beyond those of this rule", "A bucket is closed only…", most=0, beyond=True),
}

Case = record("name parameters limit")


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    tied, half, single = trained(16)[0], trained(30, 12, dtype=torch.bfloat16), trained(9, 4, 3)
    frozen = nn.Parameter(torch.zeros(50), requires_grad=False)
    views = [t.requires_grad_() for t in torch.zeros(100).split([10, 20, 70])]
    meta = [nn.Parameter(torch.empty(n, 2, device="meta")) for n in (3, 9, 5, 2)]
    return [
        Case("6 parameters, 400 bytes", trained(20, 60, 30, 10, 50, 40), 400),
        Case("buckets that are exactly full", trained(10, 15, 5, 20, 25), 100),
        Case("one tensor larger than the limit", trained(5, 300, 5, 5), 100),
        Case("tensors larger than the limit come first", trained(5, 5, 300, 200), 100),
        Case("a tied parameter", [tied, *trained(5, 7), tied, *trained(4)], 100),
        Case("a frozen parameter", [*trained(5, 7), frozen, *trained(8)], 100),
        Case("float32 and bfloat16", [single[0], half[0], single[1], half[1], single[2]], 100),
        Case("float64", trained(10, 10, 10, 3, dtype=torch.float64), 100),
        Case("views of one tensor", [*views, *trained(5, 7)], 200),
        Case("tensors on the meta device", meta, 60),
        Case("40 parameters at random", trained(*(draw.randint(1, 200) for _ in range(40))), 2000),
        Case("no parameters", [], 100),
    ]


def trained(*sizes: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [nn.Parameter(torch.zeros(n, dtype=dtype)) for n in sizes]


def observe(assign_buckets, case: Case) -> dict:
    given = list(case.parameters)
    buckets = assign_buckets(given, case.limit)
    if not isinstance(buckets, list | tuple) or not all(isinstance(b, list | tuple) for b in buckets):
        kind = "a list in which not every entry is a list" if isinstance(buckets, list | tuple) else None
        return {"lists": f"the answer is {kind or type(buckets).__name__}"}
    if empty := [place for place, bucket in enumerate(buckets) if not len(bucket)]:
        return {"lists": f"bucket {empty[0]} of the {len(buckets)} buckets is empty"}
    known = {id(p): place for place, p in enumerate(case.parameters)}
    places = [[known.get(id(tensor), -1) for tensor in bucket] for bucket in buckets]
    dealt = [place for bucket in places for place in bucket]
    if -1 in dealt:
        return {"tensors": "a bucket holds a tensor that is not in the list"}
    found = {"buckets": len(buckets), "trace": sorted(map(sorted, places))}
    due = {known[id(p)] for p in case.parameters if p.requires_grad}
    if sorted(dealt) != sorted(due):
        told = f"tensors dealt out: {len(dealt)}, different ones: {len(set(dealt))}, to deal out: {len(due)}"
        found["once"] = told
    if any(len({tensor.dtype for tensor in bucket}) > 1 for bucket in buckets):
        found["dtypes"] = "a bucket holds tensors of two dtypes"
    found["order"] = disorder(case.parameters, [tensor for bucket in buckets for tensor in bucket])
    largest = max((sum(p.nbytes for p in bucket) for bucket in buckets if len(bucket) > 1), default=0)
    if largest > case.limit:
        found["limit"] = f"a bucket of several tensors holds {largest} bytes, and the limit is {case.limit}"
    if list(map(id, given)) != list(map(id, case.parameters)):
        found["kept"] = "the list `parameters` has changed"
    return found


def disorder(parameters: Sequence[Tensor], dealt: Sequence[Tensor]) -> str:
    first = {id(p): place for place, p in reversed(list(enumerate(parameters)))}
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        order = [first[id(p)] for p in dealt if p.dtype == dtype]
        if order != sorted(order, reverse=True):
            return f"tensors of {str(dtype).removeprefix('torch.')} are dealt out in another order"
    return ""
