"""09.2: the loss of logits whose columns are on several ranks, and its gradient."""

import torch
import torch.distributed as dist
from course_checks.on_ranks import on_ranks
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic
from simulator.inputs.chunks import chunk_sizes

LOSS = "`loss` is the mean over the tokens that are not ignored (0 if all are)"
TARGET = "At most two all-reduces, which carry together at most three numbers of 4 bytes for each token."
FACTS = {
    "pair": Fact("the pair", "Return the pair `(loss, gradient)`, on every rank", each="rank"),
    "loss": Fact("the loss", LOSS, tolerance=1e-4, each="rank"),
    "gradient": Fact("the gradient", "`gradient` is its gradient by `logits`", tolerance=1e-4, each="rank"),
    "kept": Fact("logits", "`logits` stays as it is.", each="rank"),
    "calls": Fact("collectives", TARGET, most=2),
    "bytes": Fact("bytes sent beyond three numbers for each token", TARGET, most=0, beyond=True),
}

# size: of the logits
Case = record("name ranks words tokens ignored", size=1.0)
CASES = [
    Case("2 ranks, 10 words", 2, 10, 6, 0),
    Case("3 ranks, 7 words, ignored tokens", 3, 7, 9, 4),
    Case("3 ranks, a word each", 3, 3, 5, 1),
    Case("4 ranks, logits in the thousands", 4, 21, 6, 2, 3000.0),
    Case("2 ranks, one token", 2, 5, 1, 0),
    Case("2 ranks, all tokens ignored", 2, 5, 3, 3),
    Case("1 rank", 1, 6, 4, 1),
]


def drawn(case: Case) -> tuple[Tensor, Tensor]:
    """All logits and the targets."""
    draw = torch.Generator().manual_seed(case.seed)
    logits = case.size * torch.randn(case.tokens, case.words, generator=draw)
    targets = torch.randint(case.words, (case.tokens,), generator=draw)
    targets[torch.randperm(case.tokens, generator=draw)[: case.ignored]] = -100
    return logits, targets


@on_ranks(FACTS)
def observe(answer, case: Case) -> dict:
    rank, sizes, (logits, targets) = dist.get_rank(), chunk_sizes(case.words, case.ranks), drawn(case)
    own = logits.split(list(sizes), 1)[rank].clone()
    before = own.clone()
    with record_traffic() as log:
        result = answer(own, targets, sum(sizes[:rank]))
    if not isinstance(result, tuple | list) or len(result) != 2:
        return {"pair": f"the result is {type(result).__name__}, not a pair of a loss and a gradient"}
    # What is not finite becomes NaN: nobody's mistake is known by whether 0 was multiplied by infinity.
    loss, gradient = (t.detach() * t.isfinite() if isinstance(t, Tensor) else t for t in result)
    return {
        "loss": loss.reshape(()) if isinstance(loss, Tensor) and loss.numel() == 1 else loss,
        "gradient": gradient,
        "kept": "" if own.equal(before) else "`logits` has been changed in place",
        "calls": log.traffic.calls,
        "bytes": round(log.traffic.sent),
    }
