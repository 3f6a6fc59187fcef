"""05.6: two data-parallel steps with clipping, after a step of all parameters that left gradients and momentum."""

import torch
import torch.distributed as dist
from course_checks.ddp import others_samples, samples_seen
from course_checks.on_ranks import count, on_ranks
from torch import Tensor, nn

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic

SAME = "After the step, every rank has the same parameters as one device that takes the step on the whole…"
FACTS = {
    "parameters": Fact("the parameter {}", SAME, tolerance=1e-5, each="rank"),
    "loss": Fact("the loss of step {}", "All ranks return the mean loss over…", tolerance=1e-5, each="rank"),
    "others": Fact("the samples", "Each rank's model runs on its own samples only.", each="rank"),
    "messages": Fact("messages of a step", "at most 2 messages from each rank in a step.", most=2),
}
SAMPLES = 4  # of a rank
WORDS = {30.0: "large", 1.0: "middling", 0.01: "small"}

# scale: of the inputs: larger inputs, larger gradients
Case = record(
    "ranks scale frozen",
    lambda c: f"{count(c.ranks)}, {WORDS[c.scale]} gradients" + ", a frozen layer" * c.frozen,
)
LISTED = [(2, 30.0, False), (3, 30.0, True), (3, 0.01, False), (2, 1.0, True), (1, 30.0, False)]
CASES = [Case(*case) for case in LISTED]


@on_ranks(FACTS)
def observe(answer, case: Case) -> dict:
    ranks, scale, frozen, seed = case
    rank, draw = dist.get_rank(), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    model[0].requires_grad_(not frozen)
    found = {"parameters": {}, "loss": {}, "others": "", "messages": 0}
    for step in (1, 2):
        # As many examples of each class: where inputs are small, the sum of the ranks' gradients is small, too, and
        # clipping the sum is not the same as dividing by the norm.
        targets = torch.arange(SAMPLES * ranks)[torch.randperm(SAMPLES * ranks, generator=draw)] % 3
        inputs = scale * torch.randn(SAMPLES * ranks, 6, generator=draw)
        seen = samples_seen(model)
        with record_traffic() as log:
            loss = answer(model, optimizer, *(t.chunk(ranks)[rank].clone() for t in (inputs, targets)))
        found["loss"][step] = loss.item() if isinstance(loss, Tensor) else loss
        found["others"] = found["others"] or others_samples(seen, SAMPLES)
        found["messages"] = max(found["messages"], log.traffic.calls)
        for name, p in model.named_parameters():
            found["parameters"][f"{name} after step {step}"] = p.detach().clone()
    return found
