"""13.1: all-gather and reduce-scatter of unequal parts, forward and backward, on real ranks."""

import torch
import torch.distributed as dist
from course_checks.on_ranks import on_ranks
from course_checks.tensor_parallel import own_group
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic

BACK = "In backward each of them does with the gradient what the other does in forward."
FACTS = {
    "gathered": Fact("what `gather_parts` returns", "gets the tokens of all…", tolerance=1e-6, each="rank"),
    "added": Fact("what `sum_to_parts` returns", "each rank gets its own…", tolerance=1e-6, each="rank"),
    "kept": Fact("`x`", "`x` is left as it is", each="rank"),
    "gradient of gathered": Fact("the gradient of `x` by `gather_parts`", BACK, tolerance=1e-6, each="rank"),
    "gradient of added": Fact("the gradient of `x` by `sum_to_parts`", BACK, tolerance=1e-6, each="rank"),
    "bytes": Fact("bytes that a rank sends beyond those of two rings", "Forward and backward are…", most=0),
}
BATCH, HIDDEN = 2, 5

# lengths: the tokens of each rank of a group
Case = record(
    "ranks lengths",
    lambda c: (
        f"{c.ranks} ranks{f' in groups of {len(c.lengths)}' * (c.ranks > len(c.lengths))}, "
        f"{' + '.join(map(str, c.lengths))} tokens"
    ),
    dtype=torch.float64,
    strided=False,
)
CASES = [
    Case(2, (5, 3)),
    Case(2, (0, 4)),
    Case(2, (3, 3), torch.bfloat16),
    Case(3, (2, 3, 7), strided=True),
    Case(3, (1, 0, 4)),
    Case(4, (5, 1)),
    Case(2, (6,)),
]


@on_ranks(FACTS)
def observe(answers, case: Case) -> dict:
    gather_parts, sum_to_parts = answers
    group, draw = own_group(len(case.lengths)), torch.Generator().manual_seed(case.seed)
    me, p, lengths, whole = group.rank(), group.size(), case.lengths, sum(case.lengths)

    def numbers(tokens: int) -> Tensor:  # small whole ones, which bf16 has exactly
        drawn = torch.randint(-9, 10, (HIDDEN, tokens, BATCH), generator=draw).to(case.dtype)
        return drawn.transpose(0, 2) if case.strided else drawn.transpose(0, 2).contiguous()

    part, total = ([numbers(n) for n in sizes][me] for sizes in (lengths, [whole] * p))
    one_neighbour = min(lengths[me - 1], lengths[(me + 1) % p])  # whichever way the ring turns
    room = BATCH * HIDDEN * case.dtype.itemsize * (whole - one_neighbour + whole - lengths[me])
    calls = {"gathered": (gather_parts, part, total), "added": (sum_to_parts, total, part)}
    xs, outs, sent = {key: given.clone().requires_grad_() for key, (_, given, _) in calls.items()}, {}, {}
    for key, (answer, *_) in calls.items():
        with record_traffic() as log:
            outs[key] = answer(xs[key], list(lengths), group)
        sent[key] = log.traffic.sent
    found = {key: out.detach().clone() if hasattr(out, "detach") else out for key, out in outs.items()}
    fits = torch.tensor([int(getattr(outs[key], "shape", 0) == to.shape) for key, (*_, to) in calls.items()])
    dist.all_reduce(fits, dist.ReduceOp.MIN, group=group)
    for key, (_, _, upstream) in calls.items():
        with record_traffic() as log:
            if fits.all() and outs[key].requires_grad:
                outs[key].backward(upstream.clone())
        found[f"gradient of {key}"] = xs[key].grad
        sent[key] += log.traffic.sent
    changed = [FACTS[key].says for key, (_, given, _) in calls.items() if not torch.equal(xs[key], given)]
    found["kept"] = f"{changed[0].split()[1]} changes `x` in place" if changed else ""
    return found | {"bytes": max(map(round, sent.values())) - room}
