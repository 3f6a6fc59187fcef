"""05.6: two data-parallel steps with clipping, after a step of all parameters that left gradients and momentum."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.grading.judge import Fact
from course_lib.grading.ranks import launch
from course_lib.grading.samples_seen import others_samples, samples_seen
from course_lib.observe.ledgers.traffic import record_traffic

SAME = (
    "After the step, every rank has the same parameters as one device that takes the step on the whole batch, where "
    "the gradient of the whole batch is clipped to norm 1."
)
FACTS = {
    "parameters": Fact("the parameter {}", SAME, tolerance=1e-5, each="rank"),
    "loss": Fact(
        "the loss of step {}",
        "All ranks return the mean loss over the whole batch, as a number.",
        tolerance=1e-5,
        each="rank",
    ),
    "others": Fact("the samples", "Each rank's model runs on its own samples only.", each="rank"),
    "messages": Fact("messages of a step", "at most 2 messages from each rank in a step.", most=2),
}
SAMPLES = 4  # of a rank
WORDS = {30.0: "large", 1.0: "middling", 0.01: "small"}


class Case(NamedTuple):
    seed: int
    ranks: int
    scale: float  # of the inputs: larger inputs, larger gradients
    frozen: bool

    @property
    def name(self) -> str:
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        return f"{ranks}, {WORDS[self.scale]} gradients" + ", a frozen layer" * self.frozen


def cases(seed: int) -> list[Case]:
    return [
        Case(seed, 2, 30.0, False),
        Case(seed, 3, 30.0, True),
        Case(seed, 3, 0.01, False),
        Case(seed, 2, 1.0, True),
        Case(seed, 1, 30.0, False),
    ]


def on_rank(answer, seed: int, scale: float, frozen: bool) -> dict:
    rank, ranks, draw = dist.get_rank(), dist.get_world_size(), torch.Generator().manual_seed(seed)
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
        with record_traffic() as log, samples_seen(model) as seen:
            loss = answer(
                model, optimizer, inputs.chunk(ranks)[rank].clone(), targets.chunk(ranks)[rank].clone()
            )
        found["loss"][step] = loss.item() if isinstance(loss, Tensor) else loss
        found["others"] = found["others"] or others_samples(seen, SAMPLES)
        found["messages"] = max(found["messages"], log.traffic.calls)
        for name, p in model.named_parameters():
            found["parameters"][f"{name} after step {step}"] = p.detach().clone()
    return found


def observe(answer, case: Case) -> dict:
    ranks = launch(on_rank, case.ranks, args=(answer, case.seed, *case[2:]), backend="gloo", timeout=60.0)
    lists = {key: [one[key] for one in ranks] for key in ("parameters", "loss", "others")}
    return lists | {"messages": max(one["messages"] for one in ranks)}
