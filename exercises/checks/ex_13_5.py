"""13.5: a loss of which each rank computes its own tokens, and its one fault."""

import torch
from course_checks.on_ranks import on_ranks
from course_checks.tensor_parallel import own_group
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic
from simulator.predict.collective_traffic import sent_bytes

FACTS = {
    "loss": Fact("the loss", "The result is the mean of the cross entropy…", tolerance=1e-6, each="rank"),
    "x": Fact("the gradient of `x`", "After backward the gradient of `x` is…", tolerance=1e-6, each="rank"),
    "weight": Fact("the gradient of `weight`", "the gradient of `weight` is…", tolerance=1e-6, each="rank"),
    "sent": Fact("bytes sent by a rank beyond one all-reduce of the gradient of `weight`", "In forward and…", most=100),
}  # fmt: skip
WORDS, HIDDEN, BATCH = 11, 6, 2


# tokens: of each sequence, and words: to be predicted, on each rank of a group; times: what the loss is multiplied by
class Case(record("ranks tokens words", times=1.0)):
    @property
    def name(self) -> str:
        if len(self.tokens) == 1:
            return "groups of one rank"
        tokens, words = (" + ".join(map(str, many)) for many in (self.tokens, self.words))
        return f"{self.ranks} ranks, {tokens} tokens, {words} words"


CASES = [
    Case(2, (5, 3), (10, 6)),
    Case(2, (4, 4), (2, 5)),
    Case(2, (6, 0), (7, 0)),
    Case(2, (5,), (4,)),
    Case(3, (2, 3, 7), (1, 4, 2), times=3.0),
    Case(3, (4, 4, 1), (3, 0, 2), times=3.0),
]


def inputs(seed: int, tokens, words) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """`x` of each rank, `targets` of each rank, `weight`."""
    draw, targets = torch.Generator().manual_seed(seed), []
    for length, many in zip(tokens, words, strict=True):
        drawn = torch.randint(WORDS, (BATCH * length,), generator=draw)
        drawn[torch.randperm(len(drawn), generator=draw)[many:]] = -100
        targets.append(drawn.view(BATCH, length))
    shapes = [*((BATCH, length, HIDDEN) for length in tokens), (WORDS, HIDDEN)]
    *xs, weight = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes)
    return xs, targets, weight


@on_ranks(FACTS)
def observe(answer, case: Case) -> dict:
    group = own_group(len(case.tokens))
    xs, targets, weight = inputs(case.seed, case.tokens, case.words)
    x, weight = xs[group.rank()].requires_grad_(), weight.requires_grad_()
    with record_traffic() as log:
        loss = answer(x, weight, targets[group.rank()], group)
        if isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1:
            (case.times * loss).backward()
    return {
        "loss": loss.detach().clone() if isinstance(loss, Tensor) else loss,
        "x": torch.zeros_like(x) if x.grad is None and not x.numel() else x.grad,
        "weight": weight.grad,
        "sent": round(log.traffic.sent - sent_bytes("all-reduce", weight.nbytes, group.size())),
    }
