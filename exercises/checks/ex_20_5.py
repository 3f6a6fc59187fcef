"""20.5: a recovery with four faults, and the mended one on members in different states."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.grading.judge import Fact

BATCH = 12
NEWEST = (
    "All members then have the weights, the momentum and the step of the member that has done the most steps."
)
AGAIN = "With it the next step takes the first batch that no step of this state has used."
FACTS = {
    "sent": Fact("what is sent", "Weights and momentum go from one member to another by `send` alone"),
    "weights": Fact("the weights", NEWEST, tolerance=0.0, each="member"),
    "momentum": Fact("the momentum", NEWEST, tolerance=0.0, each="member"),
    "step": Fact("the step", NEWEST, each="member"),
    "position": Fact("the position", AGAIN, each="member"),
    "gradients": Fact("the gradient", "No member keeps a gradient.", tolerance=0.0, each="member"),
    "sends": Fact(
        "sends to members that have done the most steps, or twice",
        "Nothing is sent to a member that has done the most steps.",
        most=0,
    ),
}


@dataclass
class Member:
    """What one rank holds after the ranks have been numbered anew; ``weights`` and the like are ``(6,)``."""

    step: int | None
    weights: Tensor
    momentum: Tensor
    gradients: Tensor | None
    position: int


class Case(NamedTuple):
    """``steps[r]``: the updates of rank r; ``ahead[r]``: batches that its sampler has given out beyond these."""

    name: str
    steps: tuple[int | None, ...]
    ahead: tuple[int, ...]


CASES = [
    Case("three go on, and all have done 7 steps", (7, 7, 7), (1, 1, 1)),
    Case("rank 0 is one step behind", (7, 8, 8), (1, 1, 1)),
    Case("rank 2 is one step behind", (8, 8, 7), (1, 0, 1)),
    Case("a new one is rank 3", (7, 7, 7, None), (1, 1, 1, 0)),
    Case("a new one is rank 0", (None, 5, 5), (0, 0, 0)),
    Case("two new ones, one step behind", (None, 5, 6, None), (0, 1, 1, 0)),
    Case("only one member has done the last step", (8, 9, 8, 8), (1, 0, 1, 1)),
    Case("rank 0 has not begun the next step", (6, 6, 6), (0, 1, 1)),
    Case("one member", (4,), (1,)),
    Case("before the first step", (0, 0, None), (1, 1, 0)),
    Case("before the first step, and a new one is rank 0", (None, 0, 0), (0, 1, 1)),
]


def cases(seed: int) -> list[Case]:
    return CASES


def member(rank: int, step: int | None, ahead: int) -> Member:
    draw = torch.Generator().manual_seed(step or 0)  # the same for all who have done so many steps
    weights, momentum = torch.rand(6, generator=draw), torch.rand(6, generator=draw)
    if step is None:
        weights, momentum = torch.full((6,), -1.0 - rank), torch.zeros(6)
    gradients = torch.full((6,), rank + 1.0) if ahead else None
    return Member(step, weights, momentum, gradients, BATCH * ((step or 0) + ahead))


def observe(recover, case: Case) -> dict:
    members = [member(rank, *each) for rank, each in enumerate(zip(case.steps, case.ahead, strict=True))]
    before = [(each.weights.clone(), each.momentum.clone()) for each in members]
    sent = []

    def send(source: int, target: int, name: str) -> None:
        if name not in ("weights", "momentum"):
            raise ValueError(f'send(…, {name!r}): what is sent is "weights" or "momentum"')
        sent.append((target, name))
        getattr(members[target], name).copy_(getattr(members[source], name).clone())

    recover(members, BATCH, send)
    said = ""
    for rank, old in enumerate(before):
        for name, value in zip(("weights", "momentum"), old, strict=True):
            if not torch.equal(getattr(members[rank], name), value) and (rank, name) not in sent:
                said = said or f"the {name} of rank {rank} changed, and `send` was not called for it"
    most = max(step for step in case.steps if step is not None)
    found = {"sent": said, "sends": max(0, len(sent) - 2 * sum(step != most for step in case.steps))}
    for each in members:
        each.gradients = torch.zeros(6) if each.gradients is None else each.gradients
    return found | {name: [getattr(each, name) for each in members] for name in list(FACTS)[1:-1]}


def faults_in_numbers(recover) -> list[list[str]]:
    """A row for each thing that members hold: how many hold what the state of the most steps has."""
    rows = []
    for name in list(FACTS)[1:-1]:
        row = [name]
        for case in SHOWN:
            held, most = observe(recover, case)[name], max(step for step in case.steps if step is not None)
            whole = member(0, most, 0)
            right = torch.zeros(6) if name == "gradients" else torch.as_tensor(getattr(whole, name))
            fine = sum(one is not None and torch.equal(torch.as_tensor(one), right) for one in held)
            row.append(f"{fine} of {len(held)}")
        rows.append(row)
    return rows


SHOWN = (CASES[0], CASES[1], CASES[4])
