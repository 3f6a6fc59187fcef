"""The learner's own schedule: a function that says what each rank does, checked before it is drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from simulator.explorer.question import OWN, Question
from simulator.pipeline.actions import KINDS, Action, Schedule
from simulator.pipeline.schedules import make_schedule
from simulator.pipeline.validate import validate_schedule

Lists = Sequence[Sequence[Action | str]]
Own = Schedule | Callable[[int, int], Lists]

NAME = re.compile(r"([FBW])(\d+)(?: stage (\d+))?")


def schedule_of(question: Question, own: Own | None) -> Schedule:
    """The schedule that a question asks for.

    Args:
        own: what ``OWN`` stands for: a ``Schedule``, or a function of the ranks and the microbatches that returns
            for every rank the list of what it does, in order. An entry is an ``Action``, or its name as the timeline
            writes it: ``"F3"``, ``"B3"``, ``"W3"``, with several chunks a rank ``"F3 stage 5"``. A backward without
            a ``"W3"`` on the same rank is a whole one.

    Raises:
        ValueError: the schedule is no whole training step, or its ranks would wait for ever; in one sentence.
    """
    if question.schedule != OWN:
        return make_schedule(question.schedule, question.ranks, question.microbatches, question.chunks_a_rank)
    if own is None:
        raise ValueError(
            "there is no schedule of your own yet: write one, and call explore(schedule=…) with it"
        )
    if isinstance(own, Schedule):
        schedule = replace(own, name=OWN)
        if (own.ranks, own.microbatches) != (question.ranks, question.microbatches):
            raise ValueError(
                f"your schedule is written for {own.ranks} ranks and {own.microbatches} microbatches, "
                f"not for {question.ranks} and {question.microbatches}"
            )
    else:
        schedule = _from_lists(_called(own, question), question.ranks, question.microbatches)
    validate_schedule(schedule)
    return schedule


def _called(own: Callable[[int, int], Lists], question: Question) -> Lists:
    try:
        return [list(rank) for rank in own(question.ranks, question.microbatches)]
    except Exception as error:  # the learner's code may do anything; the page shows what it did
        raise ValueError(f"your schedule ended with {type(error).__name__}: {error}") from error


def _from_lists(lists: Lists, ranks: int, microbatches: int) -> Schedule:
    actions = tuple(tuple(_actions(rank, entries)) for rank, entries in enumerate(lists))
    stages = [action.stage for done in actions for action in done]
    chunks = max(stages, default=0) // ranks + 1
    return Schedule(OWN, ranks, microbatches, chunks, actions)


def _actions(rank: int, entries: Sequence[Action | str]) -> list[Action]:
    found = []
    for entry in entries:
        if isinstance(entry, Action):
            found.append(entry)
            continue
        match = NAME.fullmatch(entry) if isinstance(entry, str) else None
        if match is None:
            raise ValueError(f"rank {rank} has an action {entry!r}: write F3, B3 or W3, or F3 stage 5")
        kind, i, stage = match[1], int(match[2]), rank if match[3] is None else int(match[3])
        found.append(Action(kind, stage, i))
    weights = {action[1:] for action in found if action.kind == "W"}
    return [a._replace(kind="BW") if a.kind == "B" and a[1:] not in weights else a for a in found]


def lists_of(schedule: Schedule) -> dict[str, Any]:
    """A schedule as ``page/schedules.js`` makes it: plain lists, for a page that runs without Python."""
    actions = [[[KINDS.index(kind), stage, i] for kind, stage, i in rank] for rank in schedule.actions]
    pairs = [sorted(rank) for rank in schedule.overlapped or [frozenset()] * schedule.ranks]
    sizes = {
        name: getattr(schedule, name) for name in ("name", "ranks", "microbatches", "chunks", "placement")
    }
    return sizes | {"actions": actions, "overlapped": pairs}
