"""19.2: error feedback with three faults; the means of several steps on real ranks."""

from functools import partial

import torch
import torch.distributed as dist
from course_checks.gradient_compression import largest, signs
from course_checks.on_ranks import count, on_ranks

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic

FACTS = {
    "means": Fact("the mean of {} in each step", "Afterwards it is what this…", tolerance=1e-5, each="rank"),
    "kept": Fact("gradients", "`gradient` stays as it is."),
    "messages": Fact("messages of a call", "one collective in each call, and no other message.", most=1),
}


class FaultyFeedback:
    """Averages gradients that are compressed, and keeps what was left out."""

    def __init__(self, compress):
        self.compress = compress
        self.missing = {}

    def average(self, name, gradient):
        missing = self.missing.get(gradient.shape, torch.zeros_like(gradient))
        sent = self.compress(gradient + missing)
        mean = sent.clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        self.missing[gradient.shape] = gradient - mean
        return mean


# keeps: of a tensor's numbers; None for their signs
Case = record(
    "ranks keeps steps shapes",
    lambda c: (
        f"{count(c.ranks)}, {'signs' if c.keeps is None else f'largest {c.keeps}'}, "
        + ", ".join(map(str, c.shapes.values()))
    ),
)
CASES = [
    Case(2, 2, 4, {"layer 0": (3, 4), "layer 1": (3, 4), "bias": (5,)}),
    Case(3, 3, 5, {"embedding": (8, 2), "bias 0": (6,), "bias 1": (6,)}),
    Case(3, None, 4, {"layer 0": (7,), "layer 1": (7,)}),
    Case(1, 1, 4, {"layer 0": (4,), "layer 1": (4,)}),
    Case(2, 9, 3, {"all is sent": (3, 3), "as large": (3, 3)}),
]


@on_ranks(FACTS)
def observe(answer, case: Case) -> dict:
    ranks, keeps, steps, shapes, seed = case
    draw = torch.Generator().manual_seed(seed)
    feedback = answer(signs if keeps is None else partial(largest, keeps))
    buffers = {name: torch.empty(shape) for name, shape in shapes.items()}  # gradients reuse their memory
    means, kept, messages = {name: [] for name in shapes}, True, []
    for _ in range(steps):
        for name, shape in shapes.items():
            gradient = torch.randn(ranks, *shape, generator=draw)[dist.get_rank()]
            buffers[name].copy_(gradient)
            with record_traffic() as log:
                mean = feedback.average(name, buffers[name])
            messages.append([row.payload for row in log.events])
            kept &= torch.equal(buffers[name], gradient)
            means[name].append(mean.detach().clone())
            mean.detach().zero_()  # the caller writes into what it got
            buffers[name].zero_()
    return {
        "means": {name: torch.stack(found) for name, found in means.items()},
        "kept": "" if kept else "`gradient` has other values than before",
        "messages": max(map(len, messages)),
        "trace": max(messages, key=len),
    }
