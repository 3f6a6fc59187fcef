"""Chapter 13's run: one step of Galaxy by hand on ranks that are slow on purpose, and its three ledgers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.observe.by_hand.traffic import is_cut
from course_lib.observe.ledgers.timeline import gather_timeline, record_timeline
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import trace
from course_lib.runtime.slowed import slowed
from simulator.ledgers.timeline import Span, Timeline
from simulator.predict.traffic import calls

STEPS = 4  # the first is not timed, the second is counted, of the others the shortest is kept


class Measured(NamedTuple):
    """What a rank knows of its training."""

    losses: list[float]  # of all tokens, a number a step
    timeline: Timeline  # of the shortest step, in seconds
    sent: float  # bytes in a step
    held: int  # bytes of parameters


def measure(
    model: nn.Module, training: Iterator[tuple[Tensor, Tensor]], slowness: Sequence[float]
) -> Measured:
    """Train ``STEPS`` steps; rank r computes ``slowness[r]`` times as long as it would.

    Args:
        training: what ``course_lib.by_hand.galaxy.train`` returned.
    """
    torch.set_num_threads(1)
    told, timelines = [next(training)], []
    with record_traffic() as sent:
        told.append(next(training))
    for _ in range(2, STEPS):
        dist.barrier()
        with record_timeline() as log, trace.span("compute", "step"), slowed(slowness[dist.get_rank()]):
            told += islice(training, 1)
        timelines.append(gather_timeline(log))
    losses = torch.stack([loss for loss, _ in told])
    dist.all_reduce(losses)
    best = between_messages(min(timelines, key=lambda timeline: timeline.makespan))
    held = sum(p.nbytes for p in model.parameters())
    return Measured((losses / dist.get_world_size()).tolist(), best, sent.traffic.sent, held)


def between_messages(timeline: Timeline) -> Timeline:
    """What each rank computed between two messages, in seconds from the first start."""
    zero, spans = min(span.start for span in timeline.spans), []
    for rank in timeline.ranks:
        step = next(span for span in timeline.of(rank, "compute") if span.name == "step")
        at = step.start
        messages = sorted(timeline.of(rank, "communication"), key=lambda span: span.start)
        for start, end in [*((m.start, m.end) for m in messages), (step.end, step.end)]:
            if start > at:
                spans.append(Span(rank, "compute", "computing", at - zero, start - zero))
            at = max(at, end)
    return Timeline(spans)


def sent_in_a_step(model: nn.Module, tokens: int) -> float:
    """Bytes that each of two ranks sends in a step, in fp32: eight messages a layer, and the gradients of what every
    rank has in full, with the norm.

    Args:
        model: a ``GPT`` that has not been cut.
        tokens: in the batch.
    """
    whole = [
        p.numel() for name, p in model.named_parameters() if not (name.startswith("blocks") and is_cut(name))
    ]
    messages = 8 * model.config.num_layers * tokens * model.config.hidden_size * 4 / 2
    return messages + calls("all-reduce", [*whole, 1], 4, 2).sent
