"""19.4: the outer step of DiLoCo, on real ranks, with a tied and with a frozen layer."""

import torch
import torch.distributed as dist
from course_checks.on_ranks import count, on_ranks
from torch import nn

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic
from simulator.predict.collective_traffic import sent_bytes

STEPS = 3
ONE = "one all-reduce in each call of `step`, which carries as many bytes as the trained parameters."
FACTS = {
    "same": Fact("parameters", "The parameters are changed in place: they stay the same `Parameter`…"),
    "after": Fact(f"{{}} after each of {STEPS} outer steps", "Each trained…", tolerance=1e-4, each="rank"),
    "frozen": Fact("frozen parameters", "Frozen parameters keep their values, and are not sent."),
    "messages": Fact("messages of a step", ONE, most=1),
    "bytes": Fact("bytes sent by a rank beyond the trained parameters", ONE, most=0),
}

Case = record(
    "ranks lr momentum",
    lambda c: (
        f"{count(c.ranks)}, lr {c.lr:g}, momentum {c.momentum:g}"
        + ", a frozen layer" * c.frozen
        + ", a tied layer" * c.tied
    ),
    frozen=False,
    tied=False,
)
CASES = [
    Case(2, 0.7, 0.9),
    Case(3, 0.7, 0.9, frozen=True),
    Case(2, 0.5, 0.6, tied=True),
    Case(3, 1.0, 0.0),
    Case(1, 0.7, 0.9),
]


@on_ranks(FACTS)
def observe(outer, case: Case) -> dict:
    ranks, lr, momentum, frozen, tied, seed = case
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
    same = [id(p) for _, p, _ in first] == list(map(id, model.parameters()))
    as_it_was = all(torch.equal(p, was) for _, p, was in first if not p.requires_grad)
    return {
        "same": "" if same else "the model has other `Parameter` objects than before",
        "after": {name: torch.stack(found) for name, found in after.items()},
        "frozen": "" if as_it_was else "a frozen parameter has other values than before",
        "messages": messages,
        "bytes": max(0, sent - round(sent_bytes("all-reduce", sum(p.nbytes for _, p in trained), ranks))),
    }
