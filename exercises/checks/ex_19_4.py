"""19.4: the outer step of DiLoCo, on real ranks, with a tied and with a frozen layer."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from course_lib.grading.judge import Fact
from course_lib.grading.ranks import launch
from course_lib.observe.ledgers.traffic import record_traffic
from simulator.predict.collective_traffic import sent_bytes

STEPS = 3
ONE = "one all-reduce in each call of `step`, which carries as many bytes as the trained parameters."
FACTS = {
    "same": Fact(
        "parameters",
        "The parameters are changed in place: they stay the same `Parameter` objects, because the inner optimizer has "
        "them.",
    ),
    "after": Fact(
        f"{{}} after each of {STEPS} outer steps",
        "Each trained parameter becomes θ − lr (g + momentum · m), with the new m, on every rank.",
        tolerance=1e-4,
        each="rank",
    ),
    "frozen": Fact("frozen parameters", "Frozen parameters keep their values, and are not sent."),
    "messages": Fact("messages of a step", ONE, most=1),
    "bytes": Fact("bytes sent by a rank beyond the trained parameters", ONE, most=0),
}


class Case(NamedTuple):
    seed: int
    ranks: int
    lr: float
    momentum: float
    frozen: bool = False
    tied: bool = False

    @property
    def name(self) -> str:
        words = [f"{self.ranks} rank{'s' * (self.ranks > 1)}", f"lr {self.lr:g}, momentum {self.momentum:g}"]
        return ", ".join([*words, *["a frozen layer"] * self.frozen, *["a tied layer"] * self.tied])


def cases(seed: int) -> list[Case]:
    return [
        Case(seed, 2, 0.7, 0.9),
        Case(seed, 3, 0.7, 0.9, frozen=True),
        Case(seed, 2, 0.5, 0.6, tied=True),
        Case(seed, 3, 1.0, 0.0),
        Case(seed, 1, 0.7, 0.9),
    ]


def on_rank(outer, seed: int, ranks: int, lr: float, momentum: float, frozen: bool, tied: bool) -> dict:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 5, bias=False))
    if tied:
        model[2].weight = model[1].weight
    model[0].requires_grad_(not frozen)
    first = [(name, p, p.detach().clone()) for name, p in model.named_parameters()]
    trained = [(name, p) for name, p, _ in first if p.requires_grad]
    draw = torch.Generator().manual_seed(seed + 1)
    step = outer(model, lr, momentum)
    after, messages, sent = {name: [] for name, _ in trained}, 0, 0
    for _ in range(STEPS):
        for _, p in trained:  # the inner steps of this rank
            with torch.no_grad():
                p += 0.1 * torch.randn(ranks, *p.shape, generator=draw)[dist.get_rank()]
        with record_traffic() as log:
            step.step()
        now = dict(model.named_parameters())
        for name, found in after.items():
            found.append(now[name].detach().clone())
        messages, sent = max(messages, log.traffic.calls), max(sent, round(log.traffic.sent))
    return {
        "same": [id(p) for _, p, _ in first] == list(map(id, model.parameters())),
        "after": {name: torch.stack(found) for name, found in after.items()},
        "frozen": all(torch.equal(p, was) for _, p, was in first if not p.requires_grad),
        "messages": messages,
        "bytes": sent - round(sent_bytes("all-reduce", sum(p.nbytes for _, p in trained), ranks)),
    }


def observe(answer, case: Case) -> dict:
    ranks = launch(on_rank, case.ranks, args=(answer, *case), backend="gloo", timeout=30.0)
    same, frozen = (all(one[key] for one in ranks) for key in ("same", "frozen"))
    return {
        "same": "" if same else "the model has other `Parameter` objects than before",
        "after": [one["after"] for one in ranks],
        "frozen": "" if frozen else "a frozen parameter has other values than before",
        "messages": max(one["messages"] for one in ranks),
        "bytes": max(0, *[one["bytes"] for one in ranks]),
    }
