"""05.3: the gradient of a batch in unequal parts, of a model with a tied and with a frozen tensor, on real ranks."""

import torch
import torch.distributed as dist
import torch.nn as nn
from course_checks.ddp import gradients, others_samples, samples_seen
from course_checks.on_ranks import count, on_ranks
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic
from simulator.predict.collective_traffic import sent_bytes

FACTS = {
    "gradients": Fact("the gradient of {}", "Afterwards, on every rank…", tolerance=1e-5, each="rank"),
    "others": Fact("the samples", "Each rank's model runs on its own samples only.", each="rank"),
    "messages": Fact("messages", most=1),
    "more": Fact("bytes sent beyond the gradients and 8", most=0),
}


class Tied(nn.Module):
    """Embedding and output layer share their weight."""

    def __init__(self, seed: int, frozen: bool) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.middle = nn.Embedding(9, 4), nn.Linear(4, 4)
        self.output = nn.Linear(4, 9, bias=False)
        self.output.weight = self.embedding.weight
        self.middle.requires_grad_(not frozen)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(torch.tanh(self.middle(self.embedding(tokens))))  # (samples, 9)


# sizes: samples of each rank
Case = record(
    "sizes",
    lambda c: (
        f"{count(len(c.sizes))} with {', '.join(map(str, c.sizes))} samples" + ", a frozen layer" * c.frozen
    ),
    frozen=False,
)
CASES = [Case((4, 4)), Case((5, 2)), Case((1, 6, 3)), Case((2, 3), frozen=True), Case((0, 3, 1)), Case((5,))]


@on_ranks(FACTS, lambda case: len(case.sizes))
def observe(answer, case: Case) -> dict:
    sizes, frozen, seed = case
    draw = torch.Generator().manual_seed(seed)
    data = [torch.randint(9, (2, n), generator=draw) for n in sizes]
    model = Tied(seed, frozen)
    seen = samples_seen(model)
    with record_traffic() as log:
        answer(model, *data[dist.get_rank()].clone())
    trained = [p for p in model.parameters() if p.requires_grad]
    room = round(sent_bytes("all-reduce", sum(p.nbytes for p in trained) + 8, len(sizes)))
    return {
        "gradients": gradients(model.named_parameters()),
        "others": others_samples(seen, sizes[dist.get_rank()]),
        "messages": log.traffic.calls,
        "more": max(0, round(log.traffic.sent) - room),
    }
