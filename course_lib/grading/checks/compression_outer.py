"""The check of 19.4: the outer step of DiLoCo, beside one device and likely mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.grading.checks.ddp_ranks import generator_of, on_ranks
from course_lib.grading.report import Report, check
from course_lib.observe.ledgers.traffic import record_traffic
from simulator.predict.collective_traffic import sent_bytes

STEPS = 3
RULE = "Each trained parameter becomes θ − lr (g + momentum · m)"


class Case(NamedTuple):
    ranks: int
    lr: float
    momentum: float
    frozen: bool = False
    tied: bool = False

    def __str__(self) -> str:
        words = ["1 rank" if self.ranks == 1 else f"{self.ranks} ranks"]
        words += [f"lr {self.lr:g}, momentum {self.momentum:g}"]
        words += ["a frozen layer"] * self.frozen + ["a tied layer"] * self.tied
        return ", ".join(words)


CASES = [
    Case(2, 0.7, 0.9),
    Case(3, 0.7, 0.9, frozen=True),
    Case(2, 0.5, 0.6, tied=True),
    Case(3, 1.0, 0.0),
    Case(1, 0.7, 0.9),
]


def make_model(case: Case, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 5, bias=False))
    if case.tied:
        model[2].weight = model[1].weight
    model[0].requires_grad_(not case.frozen)
    return model


def moves(case: Case, count: int, seed: int) -> list[list[Tensor]]:
    """By step and rank: how far the inner steps of this rank move its trained parameters."""
    generator = generator_of(seed + 1)
    return [[0.1 * torch.randn(count, generator=generator) for _ in range(case.ranks)] for _ in range(STEPS)]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def run(outer: Callable, case: Case, seed: int) -> dict[str, Any]:
    model = make_model(case, seed)
    objects = list(model.parameters())
    fixed = [p.detach().clone() for p in objects if not p.requires_grad]
    trained = [p for p in objects if p.requires_grad]
    start = flat(model)
    step = outer(model, case.lr, case.momentum)
    after, messages, sent = [], 0, 0.0
    for by_rank in moves(case, start.numel(), seed):
        with torch.no_grad():
            own = by_rank[dist.get_rank()].split([p.numel() for p in trained])
            for p, move in zip(trained, own, strict=True):
                p += move.view_as(p)
        with record_traffic() as log:
            step.step()
        after.append(flat(model))
        messages, sent = max(messages, log.traffic.calls), max(sent, log.traffic.sent)
    return {
        "start": start,
        "after": torch.stack(after),
        "messages": messages,
        "sent": round(sent),
        "tensors": len(trained),
        "same": list(map(id, objects)) == list(map(id, model.parameters())),
        "all": 4 * sum(p.numel() for p in objects),
        "twice": sum(p.nbytes for _, p in model.named_parameters(remove_duplicate=False) if p.requires_grad),
        "frozen": all(
            torch.equal(a, b) for a, b in zip(fixed, [p for p in objects if not p.requires_grad], strict=True)
        ),
    }


def outer_steps(
    case: Case,
    start: Tensor,
    moved: Sequence[Sequence[Tensor]],
    *,
    nesterov: bool = True,
    sign: float = 1.0,
    mean: bool = True,
    own: bool = False,
    anchor: str = "new",
    momentum: float | None = None,
    keeps_momentum: bool = True,
    from_mean: bool = False,
    lr: float | None = None,
    dampened: bool = False,
    divide: bool = True,
    not_copied: bool = False,
    from_own: bool = False,
    written: bool = True,
) -> list[Tensor]:
    """By rank the parameters after each outer step, (steps, numbers); the settings make single mistakes of it."""
    p, lr, mu = case.ranks, case.lr if lr is None else lr, case.momentum if momentum is None else momentum
    theta = [start.double()] * p  # where the outer step begins
    now = [start.double()] * p
    m = [torch.zeros_like(start).double()] * p
    after = []
    for by_rank in moved:
        now = [x + move.double() for x, move in zip(now, by_rank, strict=True)]
        average = sum(now) / (p if divide else 1)
        theta = now if not_copied else theta
        for r in range(p):
            g = sign * (theta[r] - (now[r] if own else average))
            g = g * (1 if mean else p)
            m[r] = (mu * m[r] if keeps_momentum else 0) + g * ((1 - mu) if dampened else 1)
            direction = g + mu * m[r] if nesterov else m[r]
            new = (now[r] if from_own else average if from_mean else theta[r]) - lr * direction
            m, theta, now = list(m), list(theta), list(now)
            theta[r] = {"new": new, "start": start.double(), "average": average}[anchor]
            now[r] = new if written else now[r]
        after.append(torch.stack(now))
    return list(torch.stack(after, 1))  # (ranks, steps, numbers)


MISTAKES: dict[str, dict[str, Any]] = {
    "when the momentum is not Nesterov's: θ − lr · m (g + momentum · m is the same with the m before the update)": {
        "nesterov": False
    },
    "when the sign of g is wrong: the mean minus θ": {"sign": -1.0},
    "when the changes of the ranks are added up, and not averaged": {"mean": False},
    "when the sum of the ranks' parameters is not divided by their number": {"divide": False},
    "when θ is not a copy, and the inner steps change it": {"not_copied": True},
    "when each rank uses its own change": {"own": True},
    "when θ stays at the parameters of the beginning": {"anchor": "start"},
    "when θ of the next step is the mean of the ranks, and not the result of the outer step": {
        "anchor": "average"
    },
    "when there is no momentum": {"momentum": 0.0},
    "when the momentum begins again with zero in each step": {"keeps_momentum": False},
    "when the update begins at the mean of the ranks, and not at θ": {"from_mean": True},
    "when the parameters of the ranks are averaged, and no outer step is taken": {"momentum": 0.0, "lr": 1.0},
    "when g is multiplied by 1 − momentum before it is added to m": {"dampened": True},
    "when each rank takes the outer step from its own parameters, and not from θ": {"from_own": True},
    "when the result is not written into the parameters of the model": {"written": False},
}


def _sent(size: int, ranks: int) -> int:
    return round(sent_bytes("all-reduce", size, ranks))


@check
def check_19_4(report: Report, outer: type) -> None:
    for case in CASES:
        with report.case(str(case)):
            seed = report.seed()
            results = on_ranks(run, case.ranks, (outer, case, seed), 30)
            start, sent = results[0]["start"], max(result["sent"] for result in results)
            whole = _sent(start.nbytes, case.ranks)
            moved = moves(case, start.numel(), seed)
            report.true(
                all(result["same"] for result in results),
                "the parameters are the same objects",
                "the model has other `Parameter` objects than before",
                task="they stay the same `Parameter` objects",
            )
            report.on_every_rank(
                f"the parameters after {STEPS} outer steps",
                [result["after"] for result in results],
                outer_steps(case, start, moved),
                tolerance=1e-4,
                mistakes={text: partial(outer_steps, **settings) for text, settings in MISTAKES.items()},
                given=(case, start, moved),
                task=RULE,
                likely=f"parameters in 16 bits: a rank sent {sent} bytes, and in float32 it sends {whole}"
                if 2 * sent == whole > 0
                else None,
            )
            report.true(
                all(result["frozen"] for result in results),
                "frozen parameters are as they were",
                "a frozen parameter has other values than before",
                task="Frozen parameters keep their values, and are not sent.",
            )
            report.at_most(
                "messages of a step",
                max(result["messages"] for result in results),
                1,
                mistakes={"when each parameter takes a message of its own": results[0]["tensors"]},
                task="one all-reduce in each call of `step`",
            )
            report.at_most(
                "bytes sent by a rank",
                sent,
                whole,
                mistakes={
                    "when a tied parameter is sent twice": _sent(results[0]["twice"], case.ranks),
                    "when frozen parameters are sent, too": _sent(results[0]["all"], case.ranks),
                },
                task="as many bytes as the trained parameters",
            )
