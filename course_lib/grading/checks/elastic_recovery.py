"""The check of 20.5: a recovery with four faults, and the mended one on members in different states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.grading.report import Report, check

BATCH = 12
Send = Callable[[int, int, str], None]
Recover = Callable[[list["Member"], int, Send], None]

NEWEST = (
    "All members then have the weights, the momentum and the step of the member that has done the most steps."
)
AGAIN = "With it the next step takes the first batch that no step of this state has used."
CLEARED = "No member keeps a gradient."
BY_SEND = "Weights and momentum go from one member to another by `send` alone"
TARGET = "Nothing is sent to a member that has done the most steps."


@dataclass
class Member:
    """What one rank holds after the ranks have been numbered anew.

    Args:
        step: how many updates it has done; None for a rank that has just come.
        weights, momentum: of the model and of the optimizer, ``(6,)``.
        gradients: what the interrupted step left, or None.
        position: how many samples its sampler has given out.
    """

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


CASES = (
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
)
SHOWN = (CASES[0], CASES[1], CASES[4])


def state_after(step: int) -> tuple[Tensor, Tensor]:
    """Weights and momentum after so many steps, the same for all who have done them."""
    draw = torch.Generator().manual_seed(step)
    return torch.rand(6, generator=draw), torch.rand(6, generator=draw)


def members_of(case: Case) -> list[Member]:
    found = []
    for rank, (step, ahead) in enumerate(zip(case.steps, case.ahead, strict=True)):
        weights, momentum = (
            (torch.full((6,), -1.0 - rank), torch.zeros(6)) if step is None else state_after(step)
        )
        gradients = torch.full((6,), rank + 1.0) if ahead else None
        found.append(Member(step, weights, momentum, gradients, BATCH * ((step or 0) + ahead)))
    return found


def faulty_recovery(members, batch, send):
    """Make all members ready for the next step, with the same state."""
    for rank in range(1, len(members)):
        send(0, rank, "weights")
        members[rank].step = members[0].step
    last = max(member.position for member in members)
    for member in members:
        member.position = last


class Outcome(NamedTuple):
    members: list[Member]
    sends: int
    problem: str = ""


def recover_by(recover: Recover, case: Case) -> Outcome:
    members, sends, sent = members_of(case), 0, set()
    before = members_of(case)

    def send(source: int, target: int, name: str) -> None:
        nonlocal sends
        if name not in ("weights", "momentum"):
            raise ValueError(f'send(…, {name!r}): what is sent is "weights" or "momentum"')
        sends += 1
        sent.add((target, name))
        getattr(members[target], name).copy_(getattr(members[source], name).clone())

    recover(members, BATCH, send)
    for rank, (old, new) in enumerate(zip(before, members, strict=True)):
        for name in ("weights", "momentum"):
            changed = not torch.equal(getattr(old, name), getattr(new, name))
            if changed and (rank, name) not in sent:
                return Outcome(
                    members, sends, f"the {name} of rank {rank} changed, and `send` was not called for it"
                )
    return Outcome(members, sends)


def _right(case: Case) -> tuple[int, Tensor, Tensor]:
    step = max(step for step in case.steps if step is not None)
    return step, *state_after(step)


FACTS: dict[str, tuple[Callable[[Member], Any], str]] = {
    "weights": (lambda member: member.weights, NEWEST),
    "momentum": (lambda member: member.momentum, NEWEST),
    "step": (lambda member: member.step, NEWEST),
    "position": (lambda member: member.position, AGAIN),
    "gradients": (lambda member: _as_numbers(member.gradients), CLEARED),
}


def _as_numbers(gradients: Tensor | None) -> Tensor:
    return torch.zeros(6) if gradients is None else gradients


@check
def check_20_5(report: Report, mended_recovery: Recover) -> None:
    for case in CASES:
        with report.case(case.name):
            got = recover_by(mended_recovery, case)
            if got.problem:
                report.fail(got.problem, task=BY_SEND)
            step, weights, momentum = _right(case)
            want = (weights, momentum, step, BATCH * step, torch.zeros(6))
            for (name, (of, task)), right in zip(FACTS.items(), want, strict=True):
                report.on_every_rank(
                    f"{name} of every member",
                    [of(member) for member in got.members],
                    [right] * len(case.steps),
                    mistakes={text: _seen(program, of) for text, program in MISTAKES.items()},
                    given=(case,),
                    task=task,
                    thing={"weights": "copy of the weights", "gradients": "gradient"}.get(name, name),
                )
            needed = 2 * sum(each != step for each in case.steps)
            more = max(0, got.sends - needed)
            report.at_most("sends beyond those needed", more, 0, mistakes=SLOW, given=(case,), task=TARGET)


def _seen(program: Recover, of: Callable[[Member], Any]) -> Callable[[Case], list[Any]]:
    return lambda case: [of(member) for member in recover_by(program, case).members]


def faults_in_numbers(recover: Recover) -> list[list[Any]]:
    """A row for each fact: how many members hold what is right, in each of the shown cases."""
    rows = []
    for index, (name, (of, _)) in enumerate(FACTS.items()):
        row = [name]
        for case in SHOWN:
            step, weights, momentum = _right(case)
            right = torch.as_tensor((weights, momentum, step, BATCH * step, torch.zeros(6))[index])
            held = [of(member) for member in recover_by(recover, case).members]
            fine = sum(one is not None and torch.equal(torch.as_tensor(one), right) for one in held)
            row.append(f"{fine} of {len(held)}")
        rows.append(row)
    return rows


# ---- likely mistakes: the mended recovery with one fault left or made ----------------------------------------------


def _mended(members: list[Member], batch: int, send: Send, mistake: str = "") -> None:
    new = 0 if mistake == "new is 0" else -1
    steps = [new if member.step is None else member.step for member in members]
    newest = steps.index(max(steps))
    if mistake == "rank 0":
        newest = 0
    if mistake == "fewest":
        newest = steps.index(min(step for step in steps if step >= 0))
    if mistake == "first old":
        newest = next(rank for rank, step in enumerate(steps) if step >= 0)
    step = steps[newest]
    positions = [member.position for member in members]
    for rank, member in enumerate(members):
        behind = steps[rank] < steps[newest] if mistake != "fewest" else steps[rank] != steps[newest]
        if mistake in ("rank 0", "first old"):
            behind = rank != newest
        if mistake == "only new ones":
            behind = steps[rank] < 0
        if (behind or mistake == "to all") and rank != newest:
            send(newest, rank, "weights")
            if mistake != "no momentum" and (mistake != "momentum for new" or steps[rank] < 0):
                send(newest, rank, "momentum")
        member.step = None if step < 0 else step
        member.position = batch * max(step, 0)
        if mistake == "newest position":
            member.position = positions[newest]
        if mistake == "furthest position":
            member.position = max(positions)
        if mistake == "nearest position":
            member.position = min(positions)
        if mistake == "one batch back":
            member.position = positions[newest] - batch
        if mistake == "one batch on":
            member.position += batch
        if mistake == "position of the fewest":
            member.position = batch * min(each for each in steps if each >= 0)
        if mistake == "own position":
            member.position = positions[rank]
        if mistake != "gradients stay" and (behind or mistake != "gradients of those behind"):
            member.gradients = None


def _by(mistake: str) -> Recover:
    return lambda members, batch, send: _mended(members, batch, send, mistake)


MISTAKES: dict[str, Recover] = {
    "when rank 0 sends its state, whatever it is": _by("rank 0"),
    "when the first member that is not new sends its state, though it may be a step behind": _by("first old"),
    "when the member with the fewest steps sends its state": _by("fewest"),
    "when only new members get the state": _by("only new ones"),
    "when a member that has just come counts as one that has done 0 steps": _by("new is 0"),
    "when the momentum is not sent": _by("no momentum"),
    "when a member that is a step behind keeps its own momentum": _by("momentum for new"),
    "when the gradients of the interrupted step stay": _by("gradients stay"),
    "when only the members that get the state lose their gradients": _by("gradients of those behind"),
    "when all take the smallest position of all samplers": _by("nearest position"),
    "when one batch is taken off the position, whether or not a step was begun": _by("one batch back"),
    "when the position counts the batch of the next step as used": _by("one batch on"),
    "when the position belongs to the fewest steps, and not to the most": _by("position of the fewest"),
    "when all take the position of the member that has done the most steps": _by("newest position"),
    "when all take the position of the sampler that is furthest": _by("furthest position"),
    "when every member keeps the position of its own sampler": _by("own position"),
}
SLOW: dict[str, Callable[[Case], int]] = {
    "when the state is sent to every other member": lambda case: (
        recover_by(_by("to all"), case).sends - recover_by(_by(""), case).sends
    ),
}
