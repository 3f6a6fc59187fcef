"""05.2: gradients that are averaged while backward runs; the check's own hooks count the gradients that are there."""

import torch
import torch.distributed as dist
from course_checks.ddp import Chain, observe_step
from course_checks.on_ranks import count, on_ranks

from course_lib.data_parallel.ddp import assign_buckets
from course_lib.grading.judge import Fact, record

STAY = "Hooks that the parameters have already stay and are called as usual."
TARGET = "One all-reduce for each bucket, started with `async_op=True` as soon as this bucket and all before…"
FACTS = {
    "waited": Fact("all-reduces"),
    "averages": Fact("the gradient of {}", "every `.grad` holds its mean…", tolerance=1e-5, each="rank"),
    "called": Fact("hooks", STAY),
    "kept": Fact("hooks", STAY),
    "left": Fact("hooks", "When the function returns, the hooks that you add are removed."),
    "messages": Fact("messages of a step beyond one for each bucket", TARGET, most=0),
    "late": Fact("gradients that a complete bucket waited for", TARGET, most=0),
    "blocking": Fact("all-reduces that stop backward", TARGET, most=0),
}
WAYS = {  # how the buckets become complete -> words for it
    "plain": "",
    "crossed": ", in different orders",
    "earlier": ", gradients from an earlier backward pass",
    "frozen": ", a frozen layer",
    "swapped": ", the second bucket complete before the first",
}

Case = record("ranks limit how", lambda c: f"{count(c.ranks)}{WAYS[c.how]}, limit {c.limit} bytes")
LISTED = [(2, 700, "plain"), (2, 864, "crossed"), (3, 300, "earlier"), (2, 700, "frozen"),
          (2, 10_000, "crossed"), (2, 300, "swapped"), (1, 700, "plain")]  # fmt: skip
CASES = [Case(*case) for case in LISTED]


@on_ranks(FACTS)
def observe(answer, case: Case) -> dict:
    (_, limit, how, seed), rank = case, dist.get_rank()
    model = Chain(seed)
    model.right[1].requires_grad_(how != "frozen")
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    buckets = assign_buckets(list(parameters.values()), limit)
    if how == "swapped":
        buckets[:2] = buckets[1], buckets[0]
    given = [list(bucket) for bucket in buckets]  # the same lists in every step
    steps = []
    for step in range(2):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed + 10 * rank + step))
        for p in parameters.values():
            p.grad = torch.full_like(p, rank + 1.0) if how == "earlier" else None
        steps.append(observe_step(answer, model(x, how == "crossed").square().sum(), given, parameters))
        ready = steps[-1]["ready"]
        complete = [max(map(ready.index, map(id, bucket))) + 1 for bucket in buckets if ready]
        due = [max(complete[: i + 1]) for i in range(len(complete))]
        begun = zip(steps[-1]["issued"], due, strict=False)
        steps[-1]["late"] = sum(max(0, found - end) for found, end in begun)
        steps[-1]["messages"] = max(0, steps[-1]["messages"] - len(buckets))
    first, second = (step["averages"] for step in steps)
    averages = first | {f"{name} in the second step": g for name, g in second.items()}
    return {"averages": averages} | {key: max(step[key] for step in steps) for key in {*FACTS} - {"averages"}}
