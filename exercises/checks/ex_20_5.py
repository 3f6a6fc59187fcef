"""20.5: a recovery with four faults, and the mended one on members in different states."""

from types import SimpleNamespace

import torch

from course_lib.grading.compare import same
from course_lib.grading.judge import Fact, record
from course_lib.grading.material import material

BATCH, SENT = 12, ("weights", "momentum")
NEWEST = "the weights, the momentum and the step of the member that has done the most steps."
AGAIN = "With it the next step takes the first batch that no step of this state has used."
FACTS = {
    "sent": Fact("what is sent", "Weights and momentum go from one member to another by `send` alone"),
    "weights": Fact("the weights", NEWEST, tolerance=0.0, each="member"),
    "momentum": Fact("the momentum", NEWEST, tolerance=0.0, each="member"),
    "step": Fact("the step", NEWEST, each="member"),
    "position": Fact("the position", AGAIN, each="member"),
    "gradients": Fact("the gradient", "No member keeps a gradient.", tolerance=0.0, each="member"),
    "sends": Fact("sends to members that have done the most steps, or twice", "Nothing is sent to…", most=0),
}

# ``steps[r]``: the updates of rank r; ``ahead[r]``: batches that its sampler has given out beyond these
Case = record("name steps ahead")
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
SHOWN = (CASES[0], CASES[1], CASES[4])


def member(rank: int, step: int | None, ahead: int) -> SimpleNamespace:
    """What one rank holds after the ranks have been numbered anew."""
    draw = torch.Generator().manual_seed(step or 0)  # the same for all who have done so many steps
    weights, momentum = torch.rand(6, generator=draw), torch.rand(6, generator=draw)
    if step is None:
        weights, momentum = torch.full((6,), -1.0 - rank), torch.zeros(6)
    gradients = torch.full((6,), rank + 1.0) if ahead else None
    held = {"weights": weights, "momentum": momentum, "gradients": gradients}
    return SimpleNamespace(step=step, position=BATCH * ((step or 0) + ahead), **held)


def observe(recover, case: Case) -> dict:
    members = [member(rank, *each) for rank, each in enumerate(zip(case.steps, case.ahead, strict=True))]
    before = {(r, name): getattr(each, name).clone() for r, each in enumerate(members) for name in SENT}
    sent = []

    def send(source: int, target: int, name: str) -> None:
        if name not in SENT:
            raise ValueError(f'send(…, {name!r}): what is sent is "weights" or "momentum"')
        sent.append((target, name))
        getattr(members[target], name).copy_(getattr(members[source], name).clone())

    recover(members, BATCH, send)
    changed = [(r, n) for (r, n), old in before.items() if not torch.equal(getattr(members[r], n), old)]
    bad = [place for place in changed if place not in sent]
    said = "the {1} of rank {0} changed, and `send` was not called for it".format(*bad[0]) if bad else ""
    most = max(step for step in case.steps if step is not None)
    found = {"sent": said, "sends": max(0, len(sent) - 2 * sum(step != most for step in case.steps))}
    for each in members:
        each.step = "None" if each.step is None else each.step
        each.gradients = torch.zeros(6) if each.gradients is None else each.gradients
    return found | {name: [getattr(each, name) for each in members] for name in list(FACTS)[1:-1]}


def faults_in_numbers(recover) -> list[list[str]]:
    """A row for each thing that members hold: how many hold what is right."""

    def right(name: str, case: Case) -> str:
        held, wanted = (observe(each, case)[name] for each in (recover, material("20.5").solution))
        return f"{sum(map(same, held, wanted))} of {len(held)}"

    return [[name, *(right(name, case) for case in SHOWN)] for name in list(FACTS)[1:-1]]
