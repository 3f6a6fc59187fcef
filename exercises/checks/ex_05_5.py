"""05.5: mean and variance of a batch that no rank has whole."""

import torch
import torch.distributed as dist
from course_checks.on_ranks import count, on_ranks
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic

OVER = "Return the mean and the variance of each channel over the images of all ranks"
EXACT = "An error of a thousandth is allowed, also where values lie around 1,000 and vary by 1."
CANCELLED = (
    "the variances are multiples of 1/16\n"
    "This is what comes out when two float32 numbers around a million are subtracted, such as the mean of the squares "
    "and the square of the mean: they are multiples of 1/16, and so is the difference."
)
FACTS = {
    "pair": Fact("the answer", "two tensors of shape (channels,), the same on every rank, as a tuple"),
    "mean": Fact("the mean of each channel", OVER, tolerance=1e-3, each="rank"),
    "digits": Fact("the variances", EXACT),
    "variance": Fact("the variance of each channel", OVER, tolerance=1e-3, each="rank"),
    "kept": Fact("`x`", "`x` stays as it is."),
    "messages": Fact("messages", "at most 2 messages from each rank", most=2),
    "more": Fact("bytes sent beyond 8 (p − 1)(2 c + 1)", "at most 8 (p − 1)(2 c + 1) bytes for c…", most=0),
}


# sizes: images of each rank
class Case(record("sizes channels side", offset=0.0)):
    @property
    def name(self) -> str:
        words = f", values around {self.offset:,.0f}" if self.offset else ""
        words += ", one pixel each" if self.side == 1 else ""
        return f"{count(len(self.sizes))} with {', '.join(map(str, self.sizes))} images{words}"

    @property
    def task(self) -> str | None:
        return EXACT if self.offset else None


CASES = [
    Case((4, 4), 6, 4),
    Case((5, 2, 1), 6, 4),
    Case((0, 3, 2), 2, 3),
    Case((1, 0), 3, 1),
    Case((3, 6), 6, 4, 1000.0),
    Case((3,), 1, 2),
]


@on_ranks(FACTS, lambda case: len(case.sizes))
def observe(answer, case: Case) -> dict:
    sizes, channels, side, offset, seed = case
    rank, draw = dist.get_rank(), torch.Generator().manual_seed(seed)
    parts = [offset + r + torch.randn(n, channels, side, side, generator=draw) for r, n in enumerate(sizes)]
    x = parts[rank].clone()
    with record_traffic() as log:
        pair = answer(x)
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(t, Tensor) for t in pair):
        return {"pair": f"what is returned on rank {rank} is no pair of tensors: {pair!r:.60}"}
    mean, variance = (t.detach().clone() for t in pair)
    in_sixteenths = 16 * variance.double()
    return {
        "mean": mean,
        "digits": CANCELLED if offset and (in_sixteenths - in_sixteenths.round()).abs().max() < 1e-3 else "",
        "variance": variance,
        "kept": "" if torch.equal(x, parts[rank]) else "`x` has other values than before",
        "messages": log.traffic.calls,
        "more": max(0, round(log.traffic.sent) - 8 * (len(sizes) - 1) * (2 * channels + 1)),
    }
