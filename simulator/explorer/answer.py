"""What the explorer draws: every action with its times and the bytes around it, as flat arrays that a page can read."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

from simulator.explorer.own import Own, schedule_of
from simulator.explorer.question import Question
from simulator.pipeline.actions import KINDS
from simulator.pipeline.engine import simulate
from simulator.pipeline.execution import Execution
from simulator.predict.memory_over_time import bytes_around


@dataclass(frozen=True)
class Answer:
    """A simulated schedule; the actions of rank r lie from ``arrays["first"][r]`` to ``arrays["first"][r + 1]``.

    Args:
        head: the schedule's name, ranks, microbatches, chunks and placement.
        arrays: ``first``; of every action ``kind`` (its place in ``KINDS``), ``stage``, ``microbatch``, ``start``,
            ``end``, ``paired`` (it runs together with the next one), the bytes ``during`` and ``after`` it; of every
            stage the bytes ``saved``, ``brought`` and ``kept``; ``sends``: rank, position, start and end of each.
    """

    head: dict[str, Any]
    arrays: dict[str, array]

    def as_dict(self) -> dict[str, Any]:
        """Head and arrays in one, the arrays as lists."""
        return self.head | {name: values.tolist() for name, values in self.arrays.items()}


def answer(question: Question, own: Own | None = None) -> Answer:
    """Simulate what the question describes.

    Raises:
        ValueError: the schedule ``own`` is no whole training step, or its ranks would wait for ever.
    """
    schedule = schedule_of(question, own)
    question = replace(question, chunks=schedule.chunks)
    execution = simulate(schedule, **question.times)
    saved, brought, kept = ([size] * schedule.stages for size in question.bytes_of_a_stage)
    around = [pair for actions in schedule.actions for pair in bytes_around(actions, saved, kept, brought)]
    return Answer(
        {
            "name": schedule.name,
            "ranks": schedule.ranks,
            "microbatches": schedule.microbatches,
            "chunks": schedule.chunks,
            "placement": schedule.placement,
        },
        _run_arrays(execution)
        | {
            "during": array("d", [during for during, _ in around]),
            "after": array("d", [after for _, after in around]),
            "saved": array("d", saved),
            "brought": array("d", brought),
            "kept": array("d", kept),
        },
    )


def _run_arrays(execution: Execution) -> dict[str, array]:
    schedule = execution.schedule
    actions = list(chain.from_iterable(schedule.actions))
    paired = array("B", bytes(len(actions)))
    first = array("i", accumulate(map(len, schedule.actions), initial=0))
    for rank, pairs in enumerate(execution.pairs):
        for at in pairs:
            paired[first[rank] + at] = 1
    return {
        "first": first,
        "kind": array("B", [KINDS.index(kind) for kind, _, _ in actions]),
        "stage": array("i", [stage for _, stage, _ in actions]),
        "microbatch": array("i", [microbatch for _, _, microbatch in actions]),
        "start": array("d", chain.from_iterable(execution.starts)),
        "end": array("d", chain.from_iterable(execution.ends)),
        "paired": paired,
        "sends": array("d", chain.from_iterable(execution.sends)),
    }
