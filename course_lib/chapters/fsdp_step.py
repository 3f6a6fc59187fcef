"""One step of FSDP by hand, on ranks that share a few cores, seen in all three ledgers (chapter 07)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch.distributed as dist
from torch import nn

from course_lib.chapters.whole_units import Moment
from course_lib.observe.ledgers.timeline import gather_timeline, record_timeline, trace_modules
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.pipeline.slow_stage import Sleep
from course_lib.runtime import native
from course_lib.runtime.slow_link import slow_link
from course_lib.runtime.trace import WAITING
from simulator.ledgers.timeline import Timeline


class Step(NamedTuple):
    """What all ranks did when, the bytes that this rank sent, and what it held at each computation of a block."""

    timeline: Timeline
    sent: float
    moments: list[Moment]

    @property
    def peak(self) -> float:
        """The most bytes of parameters that the rank held, its shards with the whole units."""
        return max(moment.bytes for moment in self.moments)

    @property
    def seconds(self) -> float:
        """From the first span of any rank to the end of the last."""
        return self.timeline.end - self.timeline.start


def quickest(*record: Callable[[], Step], times: int = 3) -> list[Step]:
    """Of each kind of step its shortest recording. They take turns, so that a busy moment spoils no kind alone."""
    rounds = [[one() for one in record] for _ in range(times)]
    return [min(runs, key=lambda step: step.seconds) for runs in zip(*rounds, strict=True)]


def slow_blocks(model: nn.Module, forward: float = 0.04) -> nn.Module:
    """Let each block sleep for ``forward`` seconds in its forward and for twice that in its backward; the same model.

    A sleeping rank needs no core, so that four ranks compute side by side on two. Call it before ``fsdp``.
    """
    for block in model.blocks:
        block.register_forward_hook(lambda _, inputs, output: Sleep.apply(output, forward, 2 * forward))
    return model


@contextmanager
def record_step(
    by_hand: ModuleType, model: nn.Module, units: Sequence[Any], gather: float = 0.04
) -> Iterator[Callable[[], Step]]:
    """Record one forward and backward inside the ``with``; afterwards every rank calls what it gives.

    Args:
        by_hand: ``course_lib.by_hand.fsdp``, whose messages go over a slow link.
        model: with ``blocks``.
        units: what ``by_hand.fsdp`` made of it, the root first.
        gather: seconds that the link takes to gather one block.
    """
    ranks, block = dist.get_world_size(), sum(p.nbytes for p in model.blocks[0].parameters())
    shards = sum(unit.shard.nbytes for unit in units)
    moments: list[Moment] = []

    def note(name: str) -> None:
        states = ["coming" if unit.gathering else "whole" if here(unit) else "shard" for unit in units]
        moments.append(Moment(name, states, shards + sum(map(here, units))))

    def watch(number: int, block: nn.Module) -> list[Any]:
        """Hooks that run after those of FSDP: by then the unit is whole, and the next one is on its way."""

        def after_forward(_: nn.Module, inputs: Any, output: Any) -> None:
            output.register_hook(lambda _: note(f"B{number}"))

        return [
            block.register_forward_pre_hook(lambda *_: note(f"F{number}")),
            block.register_forward_hook(after_forward),
        ]

    names = {f"blocks.{i}": f"block {i}" for i in range(len(model.blocks))}
    hooks = [hook for i, block in enumerate(model.blocks) for hook in watch(i, block)]
    dist.barrier()
    with (
        slow_link((ranks - 1) / ranks * block / gather),
        patch.object(by_hand, "all_gather", native.all_gather),
        patch.object(by_hand, "reduce_scatter", native.reduce_scatter),
        record_timeline() as log,
        trace_modules(model, log, names),
        record_traffic() as traffic,
    ):
        yield lambda: Step(gather_timeline(log), traffic.traffic.sent, moments)
        log.marks[:] = until_waited(log.marks)
    for hook in hooks:
        hook.remove()


def until_waited(marks: Sequence[Any]) -> list[Any]:
    """Let a gather end, at the latest, when the wait for it ends: its callback may be called later."""
    reduces = [mark for mark in marks if mark.name == "reduce-scatter"]
    ends = [
        wait.end
        for wait in marks
        if wait.lane == WAITING and not any(wait.start <= r.start and r.end <= wait.end for r in reduces)
    ]
    late = {mark: [end for end in ends if mark.start < end < mark.end] for mark in marks}
    return [
        mark._replace(end=min(late[mark])) if mark.name == "all-gather" and late[mark] else mark
        for mark in marks
    ]


def here(unit: Any) -> int:
    """Bytes of a unit's parameters that are whole, or on their way."""
    return unit.whole.untyped_storage().nbytes()
